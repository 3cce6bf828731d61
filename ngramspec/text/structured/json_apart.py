"""Whether the alternatives of a oneOf exclude one another, so that each value fits only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.json_value import implied_type, listed, types_of, value_key

MAX_DEPTH = 3  # of members that tell alternatives apart
Schema = Mapping[str, Any]
Flat = Callable[[Any], Schema]


def excludes(one: Any, other: Any, flat: Flat, context: Context, depth: int = 0) -> bool:
    """Tell whether nothing that the grammar of one schema writes fits another schema.

    False if that does not show from types, listed values, and members that tell them apart.

    Args:
        one, other: The schemas.
        flat: Returns a schema without $ref and allOf.
        context: The grammar, of which the work is taken.
        depth: Of the members that are looked at.
    """
    if one is False or other is False:
        return True
    if one is True or other is True or depth > MAX_DEPTH:
        return False
    context.rules.spend(1)
    try:
        one, other = flat(one), flat(other)
    except NothingError:
        return True
    for word in ("anyOf", "oneOf"):
        if word in one:
            return all(excludes(part, other, flat, context, depth + 1) for part in one[word])
        if word in other:
            return all(excludes(one, part, flat, context, depth + 1) for part in other[word])
    kinds, others = _kinds(one, written=True), _kinds(other, written=False)
    if kinds is not None and others is not None and not kinds & others:
        return True
    values, other_values = _values(one), _values(other)
    if values is not None:
        lenient = Context(context.rules)
        keys = None if other_values is None else {value_key(value) for value in other_values}
        context.rules.spend(len(values))
        try:
            return not any(
                listed(value, other, lenient) and (keys is None or value_key(value) in keys)
                for value in values
            )
        except NothingError:
            return True
    return kinds == {"object"} and _members_exclude(one, other, flat, context, depth)


def _members_exclude(one: Schema, other: Schema, flat: Flat, context: Context, depth: int) -> bool:
    own, theirs = one.get("properties", {}), other.get("properties", {})
    needed = set(one.get("required", ()))
    closed = one.get("additionalProperties", "properties" not in one) is False
    missing = set(other.get("required", ())) - set(own) - needed
    if missing and closed and "patternProperties" not in one:
        return True
    other_closed = other.get("additionalProperties") is False and "patternProperties" not in other
    if other_closed and needed - set(theirs):
        return True
    return any(
        excludes(own[name], theirs[name], flat, context, depth + 1)
        for name in needed
        if name in own and name in theirs
    )


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _kinds(schema: Schema, written: bool) -> set[str] | None:
    """Return the types that a schema allows, None for any.

    written: Only what the grammar writes, which takes a type from other keywords.
    """
    values = _values(schema)
    if values is not None:
        return {kind for value in values for kind in types_of(value)}
    types = schema.get("type", implied_type(schema) if written else None)
    if types is None:
        return None
    kinds = set(types if isinstance(types, list) else [types])
    return kinds | {"integer"} if "number" in kinds else kinds
