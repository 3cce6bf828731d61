"""Values that models write as plain text, as JSON of the type that the schema tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ngramspec.text.chat.tools import Tool
from ngramspec.text.structured import GrammarError
from ngramspec.text.structured.gbnf import Rules
from ngramspec.text.structured.json_schema import add_schema, add_string

Schema = Mapping[str, Any]
MOST_REFERENCES = 16
MOST_VISITS = 128  # schemas that are looked at to find the types of one
MOST_PARTS = 64  # of a reference, as deep as schemas may be
STRING = frozenset(("string",))
_WORDS = {"True": "true", "False": "false", "None": "null"}
_TYPES: dict[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def properties_of(tool: Tool | None) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name."""
    properties = _object_of(tool).get("properties") if tool else None
    return properties if isinstance(properties, dict) else {}


def parameters_of(tool: Tool) -> list[tuple[str, Any, bool]]:
    """Return name, schema and whether it is required of each parameter.

    The schemas may refer to parts of the tool's.
    """
    required = _object_of(tool).get("required")
    needed = {key for key in required if isinstance(key, str)} if isinstance(required, list) else ()
    return [(key, schema, key in needed) for key, schema in properties_of(tool).items()]


def add_arguments(rules: Rules, tool: Tool) -> str:
    """Add rules for the JSON object of a tool's arguments and return the name of the first.

    Raises:
        As add_schema, but not if the tool is loose.
    """
    name = tool.name[:80]
    schema, place = tool.parameters, f"tools.{name}"
    try:
        return add_schema(rules, schema, f"{name}-arguments", place, tool.strict)
    except GrammarError:
        if not tool.loose:
            raise
        return rules.primitive("object")


def add_parameter(rules: Rules, schema: Any, key: str, tool: Tool) -> str:
    """Add rules for the JSON of a parameter and return the name of the first.

    Raises:
        As add_schema, but not if the tool is loose.
    """
    name = tool.name[:80]
    place = f"tools.{name}"
    try:
        return add_schema(rules, schema, f"{name}-{key}", place, tool.strict, tool.parameters)
    except GrammarError:
        if not tool.loose:
            raise
        return rules.primitive("value")


def add_string_parameter(rules: Rules, schema: Any, key: str, tool: Tool, mark: str) -> str | None:
    """Add a rule for a string parameter, written as it is up to a mark, and return its name.

    Returns:
        None if any text will do.

    Raises:
        As add_string, but not if the tool is loose.
    """
    name = tool.name[:80]
    place = f"tools.{name}"
    try:
        return add_string(rules, schema, f"{name}-{key}", place, tool.strict, tool.parameters, mark)
    except GrammarError:
        if not tool.loose:
            raise
        return None


def types_of(schema: Any, root: Schema) -> frozenset[str]:
    """Return the JSON types that a schema allows; none if it does not tell.

    Args:
        schema: A parameter's schema.
        root: The schema that it refers to.
    """
    return _types(schema, root, [MOST_VISITS])


def spent_types_of(rules: Rules, schema: Any, root: Schema) -> frozenset[str]:
    """Return what types_of does, for a grammar, which pays for the schemas that are looked at.

    Raises:
        GrammarError: Nothing is left to spend.
    """
    left = [MOST_VISITS]
    types = _types(schema, root, left)
    rules.spend(MOST_VISITS - max(left[0], 0))
    return types


def resolved(schema: Any, root: Schema) -> Schema:
    """Return a schema, or what it refers to; no keywords if that is none."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, dict):
            break
        if not isinstance(schema.get("$ref"), str):
            return schema
        schema = _referred(schema["$ref"], root)
    return {}


def member_schema(schema: Any, root: Schema, key: str | None) -> Any:
    """Return the schema of an object's member, or of a list's items if there is no key.

    Alternatives are looked at one by one; no schema if none tells it.
    """
    todo = [schema]
    for visited, one in enumerate(todo):  # grows on the way
        whole = resolved(one, root)
        member = whole.get("items" if key is None else "properties")
        if key is not None:
            member = member.get(key) if isinstance(member, dict) else None
        if member is not None:
            return member
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(whole.get(word), list) and visited < MOST_VISITS:
                todo += whole[word][:MOST_VISITS]
    return {}


def typed(text: str, types: frozenset[str], lines: bool = False) -> str:
    """Return a value as JSON: as it is if it is JSON of an allowed type, else as a string.

    Args:
        text: What the model wrote.
        types: The types, none = any.
        lines: A line break at its end does not belong to it.
    """
    text = text.removesuffix("\n") if lines else text
    bare = text.strip()
    bare = _WORDS.get(bare, bare)
    try:
        value = json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    kind = _TYPES[type(value)]
    also = {"integer": "number", "number": "integer"}.get(kind, kind)
    if not types or "string" not in types or kind in types or also in types:
        return bare
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Schema, left: list[int]) -> frozenset[str]:
    """Return the types; `left` holds how many schemas may still be visited."""
    left[0] -= 1
    if not isinstance(schema, dict) or left[0] < 0:
        return frozenset()
    if isinstance(schema.get("$ref"), str):
        return _types(_referred(schema["$ref"], root), root, left)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            types = [_types(one, root, left) for one in schema[key][:MOST_VISITS]]
            if key == "allOf":
                return next(filter(None, types), frozenset())
            return frozenset().union(*types) if all(types) else frozenset()
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [schema["const"]] if "const" in schema else values
    if values:
        return frozenset(_TYPES.get(type(value), "string") for value in values)
    if "properties" in schema:
        return frozenset(("object",))
    return frozenset(("array",)) if "items" in schema else frozenset()


def _object_of(tool: Tool) -> Mapping[str, Any]:
    """Return the schema of a tool's parameters, which may be a reference."""
    place = tool.parameters.get("$ref")
    schema = _referred(place, tool.parameters) if isinstance(place, str) else tool.parameters
    return schema if isinstance(schema, dict) else {}


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _referred(reference: str, root: Schema) -> Any:
    """Return what a reference names; None if that is nothing, or too deep."""
    schema: Any = root
    parts = reference.removeprefix("#").split("/", MOST_PARTS + 1)[1:]
    if len(parts) > MOST_PARTS:
        return None
    for part in parts:
        if not isinstance(schema, dict):
            return None
        schema = schema.get(unquote(part).replace("~1", "/").replace("~0", "~"))
    return schema
