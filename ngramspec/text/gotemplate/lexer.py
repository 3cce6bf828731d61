"""Split the text of a Go template into tokens: text, delimiters and what is between them."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ngramspec.errors import FormatError

SPACES = " \t\r\n"
Value: TypeAlias = str | int | float

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*"|`[^`]*`)'
    r"|(?P<character>'(?:[^'\\\n]|\\[^\n])*')"
    r"|(?P<number>[+-]?(?:\.[0-9]|[0-9])(?:[eEpP][+-]?|[\w.])*)"
    r"|(?P<variable>\$\w*)"
    r"|(?P<field>\.\w+)"
    r"|(?P<dot>\.)"
    r"|(?P<word>\w+)"
    r"|(?P<sign>:=|[=|(),])"
)
_NAMES = ("variable", "field", "dot", "word")
_ENDS_NAME = re.compile(r"[ \t\r\n.,|:()]|\}\}|\Z")
_TRIMMED_END = re.compile(r"[ \t\r\n]+-\}\}")
_COMMENT = re.compile(r"(?:-[ \t\r\n])?/\*")
_UNTERMINATED = {'"': "a closing quote", "`": "a closing back quote", "'": "a closing single quote"}
# Strings and numbers as Go writes them.
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


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of a template.

    kind: text, open, close, string, number, variable, field, dot, word, end, or the sign itself.
    value: The text of a text or name (a field without its dot), the value of a string or number.
    position: Offset in the template.
    spaced: White space precedes it, inside an action.
    """

    kind: str
    value: Value
    position: int
    spaced: bool = False


class TemplateSyntaxError(FormatError):
    """A template cannot be read; `position` is where, as an offset."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def tokens(text: str) -> Iterator[Token]:
    """Split a template into tokens; the last one is of the kind end.

    Raises:
        TemplateSyntaxError: An unterminated comment, string or action, or an unexpected character.

    Cost: linear in the text.
    """
    position, trims = 0, False
    while True:
        start = text.find("{{", position)
        between = text[position:] if start < 0 else text[position:start]
        between = between.lstrip(SPACES) if trims else between
        if start >= 0 and text[start + 2 : start + 3] == "-" and _is_space(text, start + 3):
            between = between.rstrip(SPACES)
        if between:
            yield Token("text", between, position)
        if start < 0:
            yield Token("end", "the end of the template", len(text))
            return
        comment = _COMMENT.match(text, start + 2)
        if comment:
            position = _end_of_comment(text, comment.end())
        else:
            position = yield from _action(text, start)
        trims = text[position - 3] == "-"


def _is_space(text: str, position: int) -> bool:
    return text[position : position + 1] in SPACES and position < len(text)


def _end_of_comment(text: str, start: int) -> int:
    end = text.find("*/", start)
    if end < 0:
        raise TemplateSyntaxError("expected */ to end the comment", start)
    end += 2
    if text.startswith("}}", end):
        return end + 2
    if _is_space(text, end) and text.startswith("-}}", end + 1):
        return end + 4
    raise TemplateSyntaxError("expected }} or -}} after the comment", end)


def _action(text: str, start: int) -> Generator[Token, None, int]:
    """Yield the tokens of one action with its delimiters; return the offset after it."""
    yield Token("open", "{{", start)
    position = start + 2
    if text[position : position + 1] == "-" and _is_space(text, position + 1):
        position += 2
    spaced = False
    while True:
        end = _TRIMMED_END.match(text, position)
        if end or text.startswith("}}", position):
            yield Token("close", "}}", position, spaced)
            return end.end() if end else position + 2
        match = _TOKEN.match(text, position)
        if not match:
            raise _unexpected(text, position, start)
        if match.lastgroup != "space":
            yield _token(match, spaced)
        spaced = match.lastgroup == "space"
        position = match.end()


def _token(match: re.Match[str], spaced: bool) -> Token:
    kind, text, position = str(match.lastgroup), match[0], match.start()
    if kind in _NAMES and not _ENDS_NAME.match(match.string, match.end()):
        odd = match.string[match.end()]
        raise TemplateSyntaxError(f"expected a space after {text}, found {odd!r}", match.end())
    value: Value = text
    try:
        if kind == "string":
            value = unquote(text)
        elif kind == "character":
            kind, value = "number", character(text)
        elif kind == "number":
            value = number(text)
    except FormatError as error:
        raise TemplateSyntaxError(str(error), position) from None
    if kind == "field":
        value = text[1:]
    return Token(text if kind == "sign" else kind, value, position, spaced)


def _unexpected(text: str, position: int, start: int) -> TemplateSyntaxError:
    if position == len(text):
        return TemplateSyntaxError("expected }} to end the action", start)
    char = text[position]
    if char in _UNTERMINATED:
        return TemplateSyntaxError(f"expected {_UNTERMINATED[char]}", position)
    return TemplateSyntaxError(f"expected a value, a name or }}}}, found {char!r}", position)


def unquote(quoted: str) -> str:
    """Return what a quoted string, raw string or character constant stands for.

    Args:
        quoted: With its quotes.

    Raises:
        FormatError: An escape that Go does not have.
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
    """Return the code point of a character constant such as 'x'; raises FormatError."""
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
