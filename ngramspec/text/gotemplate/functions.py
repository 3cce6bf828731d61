"""The functions of Go's text/template that every template may call.

The evaluator evaluates only the arguments of "and" and "or" that it needs. Left out are html, js,
urlquery and call, which chat templates do not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ngramspec.text.gotemplate.printf import formatted
from ngramspec.text.gotemplate.values import TemplateProblem, is_true, kind, to_text
from ngramspec.text.limits import Budget

LAZY = frozenset(("and", "or"))

_NUMBERS = ("int", "float")


@dataclass(frozen=True)
class TemplateFunction:
    """A function that a template may call.

    call: Takes the arguments and the budget.
    least: Fewest arguments.
    most: Most arguments; None = any number.
    """

    call: Callable[[Sequence[object], Budget], object]
    least: int = 1
    most: int | None = None


def _length(values: Sequence[object], budget: Budget) -> int:
    match values[0]:
        case str() as text:
            return len(text) if text.isascii() else len(_bytes(text))
        case list() | tuple() | Mapping() as several:
            return len(several)
    raise TemplateProblem(f"expected a text, a list or a map for len, found {kind(values[0])}")


def _index(values: Sequence[object], budget: Budget) -> object:
    item = values[0]
    if item is None:
        raise TemplateProblem("expected a text, a list or a map for index, found nil")
    for at in values[1:]:
        item = _item(item, at)
    return item


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
    """Compare two values; integers with floats too, which Go refuses."""
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


FUNCTIONS = {
    "and": TemplateFunction(lambda values, budget: values[-1]),
    "or": TemplateFunction(lambda values, budget: values[-1]),
    "not": TemplateFunction(_not, 1, 1),
    "eq": TemplateFunction(_equal, 2),
    "ne": TemplateFunction(_not_equal, 2, 2),
    "lt": TemplateFunction(_less, 2, 2),
    "le": TemplateFunction(_less_or_equal, 2, 2),
    "gt": TemplateFunction(_greater, 2, 2),
    "ge": TemplateFunction(_greater_or_equal, 2, 2),
    "len": TemplateFunction(_length, 1, 1),
    "index": TemplateFunction(_index),
    "slice": TemplateFunction(_slice, 1, 3),
    "print": TemplateFunction(_print, 0),
    "println": TemplateFunction(_println, 0),
    "printf": TemplateFunction(_printf),
}
