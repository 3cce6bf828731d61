"""A slow, obvious validator for the part of JSON schema that grammars follow."""

from __future__ import annotations

from typing import Any

# With one of these beside another keyword a grammar is an approximation; `is_plain` is then False.
ALONE = ("const", "enum", "anyOf")
WORDS = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
    "string": {"type", "minLength", "maxLength"},
    "integer": {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"type"},
    "boolean": {"type"},
    "null": {"type"},
}


def is_plain(schema: Any) -> bool:
    """Tell whether the schema says nothing but what `fits` knows and a grammar follows exactly."""
    if isinstance(schema, bool) or schema == {}:
        return schema is not False
    if not isinstance(schema, dict):
        return False
    for word in ALONE:
        if word in schema:
            return len(schema) == 1 and (
                word != "anyOf" or all(is_plain(one) for one in schema["anyOf"])
            )
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in WORDS or set(schema) - WORDS[kind]:
        return False
    parts = [schema[name] for name in ("items", "additionalProperties") if name in schema]
    parts += schema.get("properties", {}).values()
    return all(part is False or is_plain(part) for part in parts)


def fits(value: Any, schema: Any) -> bool:
    """Tell whether a value fits a schema for which is_plain is True."""
    if isinstance(schema, bool) or schema == {}:
        return schema is not False
    if "const" in schema:
        return same(value, schema["const"])
    if "enum" in schema:
        return any(same(value, one) for one in schema["enum"])
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    return KINDS[schema["type"]](value, schema)


def same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal; True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def _object(value: Any, schema: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return False
    known = schema.get("properties", {})
    more = schema.get("additionalProperties", "properties" not in schema)
    if not set(schema.get("required", ())) & set(known) <= set(value):
        return False
    return all(fits(part, known.get(name, more)) for name, part in value.items())


def _array(value: Any, schema: dict[str, Any]) -> bool:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    return (
        isinstance(value, list)
        and least <= len(value)
        and (most is None or len(value) <= most)
        and all(fits(part, schema.get("items", True)) for part in value)
    )


def _string(value: Any, schema: dict[str, Any]) -> bool:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not isinstance(value, str):
        return False
    # A grammar counts an escape of UTF-16 as a character: two of them may be one here.
    units = sum(2 if ord(char) > 0xFFFF else 1 for char in value)
    return units >= least and (most is None or len(value) <= most)


def _integer(value: Any, schema: dict[str, Any]) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not ("minimum" in schema and value < schema["minimum"])
        and not ("maximum" in schema and value > schema["maximum"])
        and not ("exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"])
        and not ("exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"])
    )


KINDS = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
    "number": lambda value, _: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value, _: isinstance(value, bool),
    "null": lambda value, _: value is None,
}
