"""The values of a template and what Go does with them: truth, fields, ranges, text, JSON.

Values are None (nil), bool, int, float, str, lists, mappings with keys of str, records and
dataclasses. Anything else in the data is refused when a template uses it.

One difference from Go: a missing field is nil, also on records, and nil is written as nothing. Go
stops at an unknown field of a struct and writes "<no value>" for one of a map.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

_ODD = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f"}
_SHORT |= {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class TemplateProblem(Exception):
    """A template asks for something that its data cannot give; becomes a FormatError."""


@dataclass(frozen=True)
class Record:
    """A struct in Go.

    fields: By the names that templates use.
    members: By the names of its JSON, in the order of its JSON.
    """

    fields: Mapping[str, object]
    members: Mapping[str, object]


class JsonMap(dict[str, object]):
    """A mapping that is written as JSON."""


class JsonList(list[object]):
    """A list that is written as JSON."""


def kind(value: object) -> str:
    """Return nil, bool, int, float, string, list, map or record.

    Raises:
        TemplateProblem: Anything else.
    """
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "string"
        case list() | tuple():
            return "list"
        case Mapping():
            return "map"
        case Record():
            return "record"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "record"
    raise TemplateProblem(f"expected a template value, found a {type(value).__name__}")


def is_true(value: object) -> bool:
    """Return whether a value counts as true: not nil, false, 0 or empty."""
    return kind(value) == "record" or bool(value)


def field(value: object, name: str) -> object:
    """Return a field of a record or an item of a mapping; None if it is missing.

    A dataclass has the fields that it declares, by their name or its snake case: no others, and
    no methods.

    Raises:
        TemplateProblem: The value has no fields.
    """
    match value:
        case None:
            return None
        case Mapping():
            return value.get(name)
        case Record():
            return value.fields.get(name)
    actual = kind(value)
    if actual != "record":
        raise TemplateProblem(f"expected something with the field {name}, found {actual}")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    declared = _declared(value)
    own = name if name in declared else snake
    return getattr(value, own) if own in declared else None


def items(value: object) -> Iterable[tuple[object, object]]:
    """Return what a range iterates over: index and item, key and value, or a count.

    Raises:
        TemplateProblem: The value has no items.
    """
    match value:
        case None:
            return ()
        case list() | tuple():
            return enumerate(value)
        case Mapping():
            return [(key, value[key]) for key in sorted(value, key=str)]
        case int() if not isinstance(value, bool):
            return ((number, number) for number in range(value))
    raise TemplateProblem(f"expected a list, a map or a count to range over, found {kind(value)}")


def to_text(value: object) -> str:
    """Return a value as Go's %v writes it; records and JSON values as JSON.

    Raises:
        TemplateProblem: Not a template value, or NaN in JSON.
    """
    match value:
        case str():
            return value
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case JsonMap() | JsonList():
            return json_text(value)
        case list() | tuple():
            return "[" + " ".join(map(to_text, value)) + "]"
        case Mapping():
            return "map[" + " ".join(f"{key}:{to_text(item)}" for key, item in items(value)) + "]"
    return json_text(value)


def json_text(value: object) -> str:
    """Return a value as Go's JSON.

    Raises:
        TemplateProblem: NaN, infinity, or not a template value.
    """
    return to_json(plain(value))


def plain(value: object) -> object:
    """Return a value with records as their members, and maps sorted, as Go's JSON has them."""
    match value:
        case list() | tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {str(key): plain(item) for key, item in items(value)}
        case Record():
            return {key: plain(item) for key, item in value.members.items()}
    if kind(value) == "record":
        return {name: plain(getattr(value, name)) for name in _declared(value)}
    return value


def _declared(value: object) -> list[str]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    return [item.name for item in dataclasses.fields(value) if not item.name.startswith("_")]


def float_text(value: float) -> str:
    """Return a number as Go's %v writes it: 0.5, 1e+06."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    point = len(digits) + int(exponent) - 1
    text = "".join(map(str, digits)).rstrip("0") or "0"
    if -4 <= point < 6:
        return f"{Decimal(repr(value)).normalize():f}"
    mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
    return f"{'-' * sign}{mantissa}e{point:+03d}"


def to_json(value: object) -> str:
    """Return a value as Go's encoding/json writes it: no spaces, and <, > and & escaped.

    Args:
        value: None, bool, int, float, str, and lists and mappings of them, in their order.

    Raises:
        TemplateProblem: Something else, NaN or infinity.
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
    raise TemplateProblem(f"expected a value of JSON, found a {type(value).__name__}")


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
        raise TemplateProblem(f"expected a finite number, found {value}")
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        text = repr(value)
        if "e" in text:
            text = f"{Decimal(text):f}"
        return text.removesuffix(".0")
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"
