"""Whether a value that a schema lists fits the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngramspec.text.structured.context import Context
from ngramspec.text.structured.gbnf import json_text
from ngramspec.text.structured.json_number import exact, limits_of
from ngramspec.text.structured.json_string import fits

OBJECT_WORDS = (
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    "unevaluatedProperties",
)
ARRAY_WORDS = (
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    *("contains", "minContains", "maxContains", "unevaluatedItems"),
)
STRING_WORDS = ("pattern", "format", "minLength", "maxLength")
NUMBER_WORDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
BY_TYPE = {
    "object": OBJECT_WORDS,
    "array": ARRAY_WORDS,
    "string": STRING_WORDS,
    "number": NUMBER_WORDS,
}


def listed(value: Any, schema: Mapping[str, Any], context: Context) -> bool:
    """Tell whether a value has a schema's type, and fits its bounds, lengths and patterns.

    What the parts of an object or an array must fit is left out.

    Raises:
        GrammarError: A keyword is not valid, or the request is strict and parts matter.
        TooLargeError: A pattern is too large to tell.
    """
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds != [None] and not any(kind in types_of(value) for kind in kinds):
        return False
    if isinstance(value, str):
        return fits(value, schema, context)
    if isinstance(value, (dict, list)):
        for word in OBJECT_WORDS if isinstance(value, dict) else ARRAY_WORDS:
            if word in schema:
                context.cannot(f"{word} beside enum or const")
        return True
    if value is None or isinstance(value, bool):
        return True
    limits = limits_of(schema)
    return limits is None or limits.allow(exact(value))


def implied_type(schema: Mapping[str, Any]) -> str | None:
    """Return the type that the other keywords of a schema imply, None for any."""
    return next((kind for kind, words in BY_TYPE.items() if any(w in schema for w in words)), None)


def types_of(value: Any) -> tuple[str, ...]:
    """Return the types that a value of JSON has."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("integer", "number")
    if isinstance(value, float):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ({str: "string", list: "array", dict: "object", type(None): "null"}[type(value)],)


def value_key(value: Any) -> str:
    """Return a text that is the same for equal values: 1 and 1.0, but not true.

    Raises:
        GrammarError: It holds a number that is not finite.
    """
    whole = isinstance(value, float) and value.is_integer()
    return json_text(int(value) if whole else value)
