"""Strings and numbers as Go writes them."""

from __future__ import annotations

import math
import re

from ngramspec.errors import FormatError

_ESCAPE = re.compile(
    rb"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|([0-7]{3})"
    rb"|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|())",
    re.DOTALL,
)
_SIMPLE = dict(zip(b"abfnrtv\\\"'", b"\a\b\f\n\r\t\v\\\"'", strict=True))
_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[oO]?(?:_?[0-7])+|0[bB](?:_?[01])+|0|[1-9](?:_?[0-9])*)"
)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOST, _LEAST = (1 << 63) - 1, -(1 << 63)
_LONGEST = 80  # digits; binary numbers have 64, and leading zeros are few


def unquote(quoted: str) -> str:
    """Return what a quoted string, raw string or character constant stands for.

    Args:
        quoted: With its quotes.

    Raises:
        FormatError: An escape that Go does not know, or not exactly one character in ' '.
    """
    quote, body = quoted[0], quoted[1:-1]
    if quote == "`":
        return body.replace("\r", "")
    if "\\" not in body:
        return body
    other = b"'" if quote == '"' else b'"'
    out, last = bytearray(), 0
    data = body.encode("utf-8", "surrogatepass")
    for match in _ESCAPE.finditer(data):
        out += data[last : match.start()] + _escaped(match, other)
        last = match.end()
    return (out + data[last:]).decode("utf-8", "replace")


def _escaped(match: re.Match[bytes], other: bytes) -> bytes:
    simple, *numbers, unknown = match.groups()
    if unknown is not None or simple == other:
        raise FormatError('expected a Go escape such as \\n, \\" or \\u00e9 after a backslash')
    if simple is not None:
        return bytes([_SIMPLE[simple[0]]])
    hexadecimal, octal, short, long = numbers
    if hexadecimal is not None or octal is not None:
        byte = int(hexadecimal, 16) if hexadecimal is not None else int(octal, 8)
        if byte > 255:
            raise FormatError(f"expected an octal escape up to \\377, found {match[0].decode()}")
        return bytes([byte])
    code = int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise FormatError(f"expected a Unicode character, found {match[0].decode()}")
    return chr(code).encode()


def character(quoted: str) -> int:
    """Return the number of a character constant such as 'x'."""
    text = unquote(quoted)
    if len(text) != 1:
        raise FormatError(f"expected one character between single quotes, found {quoted}")
    return ord(text)


def number(text: str) -> int | float:
    """Return the value of an integer or a floating-point number.

    Raises:
        FormatError: Not a number, or an integer of more than 64 bits.
    """
    if _INTEGER.fullmatch(text):
        digits = text.replace("_", "").lower()
        legacy = re.fullmatch(r"[+-]?0[0-7]+", digits)
        if len(digits) <= _LONGEST:
            value = int(digits, 8) if legacy else int(digits, 0)
            if _LEAST <= value <= _MOST:
                return value
        raise FormatError(f"expected an integer of 64 bits, found {text[:_LONGEST]}")
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        real = float(text)
        if math.isinf(real):
            raise FormatError(f"expected a number of 64 bits, found {text[:_LONGEST]}")
        return real
    raise FormatError(f"expected a number, found {text[:_LONGEST]}")
