"""Schemas that must hold together, as one schema: allOf, and what stands beside anyOf or $ref."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.json_number import common_step, step_of
from ngramspec.text.structured.json_string import several
from ngramspec.text.structured.json_value import value_key

Schema = Mapping[str, Any]
_HIGHER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SCHEMAS = ("items", "additionalItems", "additionalProperties", "propertyNames")
_BY_NAME = ("properties", "patternProperties")
_OTHERS = (
    *("not", "if", "contains", "dependentSchemas", "dependencies", "unevaluatedProperties"),
    *("unevaluatedItems", "minContains", "maxContains"),
)


class Merger:
    """Merges the schemas of one request. The same two always become the same one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # By the ids of schemas that hold together: these schemas, and the one they make.
        self._sets: dict[frozenset[int], tuple[tuple[Any, ...], Any]] = {}
        self._parts: dict[int, tuple[Any, ...]] = {}  # of a schema made here, by its id

    def both(self, one: Any, other: Any) -> Any:
        """Return a schema for what fits two schemas."""
        if one is other or other is True or other == {}:
            return one
        if one is True or one == {}:
            return other
        if one is False or other is False:
            return False
        parts = (*self._parts.get(id(one), (one,)), *self._parts.get(id(other), (other,)))
        whole = {id(part): part for part in parts}
        key = frozenset(whole)
        if key not in self._sets:
            self._context.rules.spend(len(whole))
            merged = {"allOf": list(whole.values())}
            self._sets[key] = parts, merged
            self._parts[id(merged)] = tuple(whole.values())
        return self._sets[key][1]

    def merged(self, one: Schema, other: Schema) -> Schema:
        """Return one schema for what fits two, both without $ref and allOf.

        Raises:
            NothingError: They contradict one another.
        """
        self._context.rules.spend(len(one) + len(other))
        one, other = _listed(one), _listed(other)
        one, other = self._completed(one, other), self._completed(other, one)
        shared = {word: self._word(word, one, other) for word in other if word in one}
        return {**one, **other, **shared}

    def _completed(self, schema: Schema, other: Schema) -> Schema:
        """Return a schema whose properties fit the other's additionalProperties."""
        rest, own = other.get("additionalProperties", True), schema.get("properties", {})
        if rest is True or rest == {}:
            return schema
        foreign = [name for name in own if name not in other.get("properties", ())]
        if not foreign or other.get("patternProperties"):
            return schema
        if rest is False:  # what people write that way means all parts together
            self._context.cannot("additionalProperties: false", "in a part of allOf is no use")
            return schema
        self._context.rules.spend(len(own))
        return {**schema, "properties": {**own, **{n: self.both(own[n], rest) for n in foreign}}}

    def _word(self, word: str, one: Schema, other: Schema) -> Any:
        """Return a keyword that two schemas have, for both."""
        first, second = one[word], other[word]
        if word in _HIGHER or word in _LOWER:
            return (max if word in _HIGHER else min)(first, second)
        if word in _SCHEMAS and not isinstance(first, list) and not isinstance(second, list):
            return self.both(first, second)
        if word in _BY_NAME:
            return self._by_name(first, second)
        if word in _BOTH:
            return _BOTH[word](first, second)
        if word == "multipleOf":
            return common_step(step_of(one), step_of(other))
        if word in ("anyOf", "oneOf"):
            self._context.rules.spend(len(first))
            return [{"allOf": [part, {word: second}]} for part in first]
        if word == "prefixItems" and len(first) == len(second):
            return [self.both(a, b) for a, b in zip(first, second, strict=True)]
        if word in (*_OTHERS, "prefixItems", "items", "additionalItems") and first != second:
            self._context.cannot(f"{word} in several parts of allOf")
        return second

    def _by_name(self, first: Schema, second: Schema) -> Schema:
        self._context.rules.spend(len(first) + len(second))
        shared = {n: self.both(first[n], second[n]) for n in second if n in first}
        return {**first, **second, **shared}


def _listed(schema: Schema) -> Schema:
    """Return a schema whose const is an enum."""
    if "const" not in schema:
        return schema
    rest = {word: value for word, value in schema.items() if word != "const"}
    only = [schema["const"]]
    return {**rest, "enum": _common(rest["enum"], only) if "enum" in rest else only}


def _common(first: list[Any], second: list[Any]) -> list[Any]:
    keys = {value_key(value) for value in second}
    common = [value for value in first if value_key(value) in keys]
    if not common:
        raise NothingError("no value is in all enums that must hold together")
    return common


def _types(first: Any, second: Any) -> Any:
    one, other = (types if isinstance(types, list) else [types] for types in (first, second))
    common = [kind for kind in one if kind in other or (kind == "integer" and "number" in other)]
    common += [kind for kind in other if kind == "integer" and "number" in one and kind not in one]
    if not common:
        raise NothingError(f"no value has two types that must hold together: {one}, {other}")
    return common[0] if len(common) == 1 else common


def _united(first: list[str], second: list[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def _united_by_name(
    first: Mapping[str, list[str]], second: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    return {**first, **{n: _united(first.get(n, []), needs) for n, needs in second.items()}}


def _together(first: Any, second: Any) -> tuple[Any, ...]:
    return (*several(first), *(one for one in several(second) if one not in several(first)))


_BOTH: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _common,
    "required": _united,
    "dependentRequired": _united_by_name,
    "pattern": _together,
    "format": _together,
    "uniqueItems": lambda first, second: first or second,
}
