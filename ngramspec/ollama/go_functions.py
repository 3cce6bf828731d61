"""The functions that templates call: those of text/template, and those that Ollama adds.

"and" and "or" are not here: they do not evaluate all of their arguments. Nor are html, js, urlquery
and call, which chat templates have no use for.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ngramspec.ollama.go_limits import Budget
from ngramspec.ollama.go_printf import formatted
from ngramspec.ollama.go_values import (
    Record,
    TemplateProblem,
    field,
    is_true,
    json_text,
    kind,
    to_text,
)

LAZY = frozenset(("and", "or"))

_ORDERED = ("int", "float", "string")
_NUMBERS = ("int", "float")
_TYPESCRIPT = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_TYPESCRIPT |= {"array": "any[]", "object": "Record<string, any>", "null": "null"}


@dataclass(frozen=True)
class Builtin:
    """A function that a template may call.

    call: Takes the arguments and what is left of the limits.
    least: Number of arguments.
    most: Number of arguments; None = any.
    """

    call: Callable[[Sequence[object], Budget], object]
    least: int = 1
    most: int | None = None


def functions(today: datetime.date) -> dict[str, Builtin]:
    """Return all functions by name, for a rendering on one day."""
    yesterday = today - datetime.timedelta(days=1)
    return {
        **_FUNCTIONS,
        "currentDate": Builtin(lambda values, budget: today.isoformat(), 0),
        "yesterdayDate": Builtin(lambda values, budget: yesterday.isoformat(), 0),
    }


def _length(values: Sequence[object], budget: Budget) -> int:
    match values[0]:
        case str() as text:
            return len(text) if text.isascii() else len(_bytes(text))
        case list() | tuple() | Mapping() as several:
            return len(several)
    raise TemplateProblem(f"expected a text, a list or a map for len, found {kind(values[0])}")


def _index(values: Sequence[object], budget: Budget) -> object:
    found = values[0]
    if found is None:
        raise TemplateProblem("expected a text, a list or a map for index, found nil")
    for at in values[1:]:
        found = _item(found, at)
    return found


def _item(value: object, at: object) -> object:
    match value:
        case Mapping():
            if not isinstance(at, str):
                raise TemplateProblem(f"expected a text as the key of a map, found {kind(at)}")
            return value.get(at)
        case str():
            data = _bytes(value)
            return data[_place(at, len(data) - 1)]
        case list() | tuple():
            return value[_place(at, len(value) - 1)]
    raise TemplateProblem(f"expected a text, a list or a map for index, found {kind(value)}")


def _slice(values: Sequence[object], budget: Budget) -> object:
    value = values[0]
    if not isinstance(value, str | list | tuple):
        raise TemplateProblem(f"expected a text or a list for slice, found {kind(value)}")
    whole = _bytes(value) if isinstance(value, str) else value
    start = _place(values[1], len(whole)) if len(values) > 1 else 0
    stop = _place(values[2], len(whole)) if len(values) > 2 else len(whole)
    if start > stop:
        raise TemplateProblem(f"expected a slice from left to right, found {start} and {stop}")
    part = whole[start:stop]
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def _place(at: object, last: int) -> int:
    """Check an index."""
    if kind(at) != "int" or not isinstance(at, int):
        raise TemplateProblem(f"expected an integer as index, found {kind(at)}")
    if not 0 <= at <= last:
        raise TemplateProblem(f"expected an index from 0 to {last}, found {at}")
    return at


def _bytes(text: str) -> bytes:
    """Return the UTF-8 that Go counts and cuts."""
    return text.encode("utf-8", "surrogatepass")


def _not(values: Sequence[object], budget: Budget) -> bool:
    return not is_true(values[0])


def _equal(values: Sequence[object], budget: Budget) -> bool:
    return any(_same(values[0], other) for other in values[1:])


def _not_equal(values: Sequence[object], budget: Budget) -> bool:
    return not _same(values[0], values[1])


def _same(one: object, other: object) -> bool:
    """Compare; integers and other numbers too, which Go refuses."""
    kinds = kind(one), kind(other)
    if "nil" in kinds:
        return kinds == ("nil", "nil")
    if kinds[0] == kinds[1] and kinds[0] not in ("list", "map", "record"):
        return one == other
    if kinds[0] in _NUMBERS and kinds[1] in _NUMBERS:
        return one == other
    raise TemplateProblem(f"expected two values of one simple kind, found {' and '.join(kinds)}")


def _less(values: Sequence[object], budget: Budget) -> bool:
    return _order(values) < 0


def _less_or_equal(values: Sequence[object], budget: Budget) -> bool:
    return _order(values) <= 0


def _greater(values: Sequence[object], budget: Budget) -> bool:
    return _order(values) > 0


def _greater_or_equal(values: Sequence[object], budget: Budget) -> bool:
    return _order(values) >= 0


def _order(values: Sequence[object]) -> int:
    """Return -1, 0 or 1."""
    match values:
        case [str() as one, str() as other]:
            return (one > other) - (one < other)
        case [int() | float() as left, int() | float() as right]:
            if "bool" not in (kind(left), kind(right)):
                return (left > right) - (left < right)
    kinds = " and ".join(map(kind, values))
    raise TemplateProblem(f"expected two numbers or two texts to compare, found {kinds}")


def _print(values: Sequence[object], budget: Budget) -> str:
    """Put spaces between two values when neither is a text."""
    pieces: list[str] = []
    before_is_text = True
    for value in values:
        is_text = isinstance(value, str)
        if not is_text and not before_is_text:
            pieces.append(" ")
        pieces.append(budget.text(to_text(value)))
        before_is_text = is_text
    return "".join(pieces)


def _println(values: Sequence[object], budget: Budget) -> str:
    return " ".join(budget.text(to_text(value)) for value in values) + "\n"


def _printf(values: Sequence[object], budget: Budget) -> str:
    layout, *rest = values
    if not isinstance(layout, str):
        raise TemplateProblem(f"expected a text as the layout of printf, found {kind(layout)}")
    return "".join(budget.text(piece) for piece in formatted(layout, rest))


def _json(values: Sequence[object], budget: Budget) -> str:
    return budget.text(json_text(values[0]))


def _typescript(values: Sequence[object], budget: Budget) -> str:
    return typescript_type(values[0])


def typescript_type(value: object) -> str:
    """Return the TypeScript type of a property of a tool; "any" for everything else."""
    if not isinstance(value, Record):
        return "any"
    choices = field(value, "AnyOf")
    if isinstance(choices, list) and choices:
        return " | ".join(map(typescript_type, choices))
    types = field(value, "Type")
    several = types if isinstance(types, list) else [types]
    return " | ".join(_TYPESCRIPT.get(str(one), "any") for one in several) or "any"


_FUNCTIONS = {
    "and": Builtin(lambda values, budget: values[-1]),
    "or": Builtin(lambda values, budget: values[-1]),
    "not": Builtin(_not, 1, 1),
    "eq": Builtin(_equal, 2),
    "ne": Builtin(_not_equal, 2, 2),
    "lt": Builtin(_less, 2, 2),
    "le": Builtin(_less_or_equal, 2, 2),
    "gt": Builtin(_greater, 2, 2),
    "ge": Builtin(_greater_or_equal, 2, 2),
    "len": Builtin(_length, 1, 1),
    "index": Builtin(_index),
    "slice": Builtin(_slice, 1, 3),
    "print": Builtin(_print, 0),
    "println": Builtin(_println, 0),
    "printf": Builtin(_printf),
    "json": Builtin(_json, 1, 1),
    "toJson": Builtin(_json, 1, 1),
    "toTypeScriptType": Builtin(_typescript, 1, 1),
}
NAMES = frozenset(functions(datetime.date.min + datetime.timedelta(days=1)))
