"""The verbs of printf that templates use: %s %d %v %q %t %f %e %g %x %X %c %%.

Where Go writes something like "%!d(string=x)" for an argument that does not fit, this raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ngramspec.text.gotemplate.values import (
    JsonList,
    JsonMap,
    TemplateProblem,
    items,
    kind,
    to_text,
)

_VERB = re.compile(r"%([-+# 0]*)([0-9]*)(?:\.([0-9]*))?(.?)", re.DOTALL)
_WIDEST = 100
_QUOTED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_QUOTED |= {"\v": "\\v", "\\": "\\\\", '"': '\\"'}
_KINDS = {
    **dict.fromkeys("dc", ("int",)),
    **dict.fromkeys("feg", ("float",)),
    **dict.fromkeys("xX", ("int", "string")),
    **dict.fromkeys("q", ("string",)),
    **dict.fromkeys("t", ("bool",)),
    **dict.fromkeys("s", ("string", "list", "map", "record")),
    **dict.fromkeys("v", ("nil", "bool", "int", "float", "string", "list", "map", "record")),
}


def formatted(layout: str, values: Sequence[object]) -> Iterator[str]:
    """Yield the pieces of what printf writes.

    Args:
        layout: Text with verbs.
        values: One per verb.

    Raises:
        TemplateProblem: An unknown verb, too many or few values, or a value of a kind
            that its verb does not take.
    """
    last, used = 0, 0
    for match in _VERB.finditer(layout):
        yield layout[last : match.start()]
        last = match.end()
        if match[4] == "%":
            yield "%"
            continue
        if used == len(values):
            raise TemplateProblem(f"expected a value for {match[0]}, found only {used}")
        yield _one(match, values[used])
        used += 1
    if used < len(values):
        raise TemplateProblem(f"expected {used} values for {layout!r}, found {len(values)}")
    yield layout[last:]


def _one(match: re.Match[str], value: object) -> str:
    flags, wide, precise, verb = match.groups()
    if verb not in _KINDS:
        raise TemplateProblem(f"expected one of %s %d %v %q %t %f %e %g %x %c, found {match[0]!r}")
    if isinstance(value, list | tuple) and not isinstance(value, JsonList):
        return "[" + " ".join(_one(match, item) for item in value) + "]"
    if isinstance(value, Mapping) and not isinstance(value, JsonMap):
        pairs = (f"{_one(match, key)}:{_one(match, item)}" for key, item in items(value))
        return "map[" + " ".join(pairs) + "]"
    if kind(value) not in _KINDS[verb]:
        kinds = " or ".join(_KINDS[verb])
        raise TemplateProblem(f"expected {kinds} for {match[0]}, found {kind(value)}")
    width = int(wide or 0) if len(wide) < 5 else _WIDEST + 1
    precision = None if precise is None else int(precise or 0) if len(precise) < 5 else _WIDEST + 1
    if width > _WIDEST or (precision or 0) > _WIDEST:
        raise TemplateProblem(f"expected a width up to {_WIDEST}, found {match[0]}")
    text = _text(verb, value, precision)
    number = isinstance(value, int | float) and not isinstance(value, bool) and verb not in "cq"
    if number and not text.startswith("-"):
        text = ("+" if "+" in flags and verb != "v" else " " if " " in flags else "") + text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and number:
        return text.zfill(width)
    return text.rjust(width)


def _text(verb: str, value: object, precision: int | None) -> str:
    """Write a value whose kind fits the verb."""
    match verb, value:
        case "c", int():
            return chr(value) if 0 <= value <= 0x10FFFF else "\ufffd"
        case "x" | "X", int():
            return format(value, verb)
        case "x" | "X", str():
            digits = value.encode("utf-8", "surrogatepass").hex()
            return digits.upper() if verb == "X" else digits
        case "d", int() if precision is not None:
            return ("-" if value < 0 else "") + str(abs(value)).zfill(precision)
        case "f" | "e", float():
            return format(value, f".{6 if precision is None else precision}{verb}")
        case "g", float() if precision is not None:
            return format(value, f".{precision or 1}g")
        case "q", str():
            return quoted(value if precision is None else value[:precision])
        case "s" | "v", str() if precision is not None:
            return value[:precision]
    return to_text(value)


def quoted(text: str) -> str:
    """Return a text in double quotes, as Go's %q writes it."""
    return '"' + "".join(map(_quoted_character, text)) + '"'


def _quoted_character(character: str) -> str:
    code = ord(character)
    if character in _QUOTED:
        return _QUOTED[character]
    if 0xD800 <= code < 0xE000:
        return "\\ufffd"
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
