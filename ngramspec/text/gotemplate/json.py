"""JSON as Go's encoding/json writes it: no spaces, and <, > and & escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

_ODD = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f"}
_SHORT |= {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class JsonProblem(ValueError):
    """A value that JSON cannot represent."""


def to_json(value: object) -> str:
    """Return a value as JSON, mappings in their order.

    Args:
        value: None, bool, int, float, str, and lists and mappings of them.

    Raises:
        JsonProblem: Something else, NaN or infinity.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float(value)
        case str():
            return _string(value)
        case list() | tuple():
            return "[" + ",".join(map(to_json, value)) + "]"
        case Mapping():
            pairs = (f"{_string(str(key))}:{to_json(item)}" for key, item in value.items())
            return "{" + ",".join(pairs) + "}"
    raise JsonProblem(f"expected a value of JSON, found a {type(value).__name__}")


def _string(text: str) -> str:
    return '"' + _ODD.sub(_escaped, text) + '"'


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    if "\ud800" <= char <= "\udfff":  # half of a pair: no character
        return "\\ufffd"
    return _SHORT.get(char) or f"\\u{ord(char):04x}"


def _float(value: float) -> str:
    """Write a number like JavaScript: no exponent from 1e-6 up to 1e21."""
    if not math.isfinite(value):
        raise JsonProblem(f"expected a finite number, found {value}")
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        text = repr(value)
        if "e" in text:
            text = f"{Decimal(text):f}"
        return text.removesuffix(".0")
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"
