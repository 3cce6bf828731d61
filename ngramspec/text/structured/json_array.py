"""Arrays: their first items, each with a schema of its own, then others, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.json_string import bounds_of

COMMA = ' space "," space '
Visit = Callable[[Any, str], str]


def array_text(schema: Mapping[str, Any], context: Context, name: str, visit: Visit) -> str:
    """Return GBNF for the arrays of a schema.

    Items that come first are all written unless minItems or maxItems allow for fewer, and no
    others after them unless `items` or minItems ask for some.

    Args:
        schema: The schema, without allOf, anyOf and $ref.
        context: The grammar.
        name: Name of the rule.
        visit: Returns a rule for a schema, given a name.

    Raises:
        GrammarError: A keyword is not valid, or cannot be enforced in a strict request.
        NothingError: No array fits.
    """
    low, high = bounds_of(schema, "minItems", "maxItems")
    first, rest = _items(schema, low)
    if first and "minItems" not in schema:
        low = len(first) if high is None else min(high, len(first))
    rules, items, most = _rules(first, rest, name, visit, high)
    if most is not None and low > most:
        raise NothingError("no array has as many items as a schema asks for")
    if schema.get("uniqueItems") is True and (most is None or most > 1):
        context.cannot("uniqueItems")
    text = ""
    if items is not None:
        left = None if most is None else most - len(rules)
        text = _others(context, items, max(0, low - len(rules)), left, bool(rules), name)
    for at in reversed(range(len(rules))):
        comma = COMMA if at else ""
        text = f"{comma}{rules[at]} {text}"
        if at >= low:
            text = context.rules.add(f"{name}-rest", f"({text})?")
    return f'"[" space {text} space "]"' if text else '"[" space "]"'


def _items(schema: Mapping[str, Any], low: int) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and of all others."""
    items, first = schema.get("items"), schema.get("prefixItems")
    if first is None and isinstance(items, list):
        first, items = items, schema.get("additionalItems")
    if items is None:
        none_more = schema.get("unevaluatedItems") is False
        items = not none_more and (first is None or low > len(first))
    return list(first or ()), items


def _rules(
    first: list[Any], rest: Any, name: str, visit: Visit, high: int | None
) -> tuple[list[str], str | None, int | None]:
    """Return rules for the first items, for the others if any, and how many items there can be."""
    rules: list[str] = []
    for schema in first[:high]:
        try:
            rules.append(visit(schema, f"{name}-{len(rules)}"))
        except NothingError:
            return rules, None, len(rules)
    if high is not None and high <= len(rules):
        return rules, None, high
    try:
        return rules, visit(rest, f"{name}-item"), high
    except NothingError:
        return rules, None, len(rules)


def _others(context: Context, item: str, low: int, high: int | None, comma: bool, name: str) -> str:
    """Return GBNF for items that have one schema."""
    following = context.rules.add(f"{name}-next", f"{COMMA}{item}")
    if comma:
        return context.rules.repeated(following, low, high)
    more = None if high is None else high - 1
    inside = f"{item} {context.rules.repeated(following, max(0, low - 1), more)}"
    return inside if low else f"({inside})?"
