"""Values that models write as plain text, as JSON of the type that the schema tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ngramspec.errors import GrammarError
from ngramspec.text.chat.tools import Tool
from ngramspec.text.structured.guidance import ANY_OBJECT, errors_of, schema_lark
from ngramspec.text.structured.lark_rules import Part, Rules, Source, regex, row
from ngramspec.text.structured.string_schema import referred, string_part

Schema = Mapping[str, Any]
MOST_REFERENCES = 16
MOST_VISITS = 128  # schemas that are looked at to find the types of one
STEPS_OF_REFUSED = 2000  # of a schema that is refused; reading it takes as long as a large one
STRING = frozenset(("string",))
# Around the text of a custom tool.
INPUT_START, INPUT_END = regex(r'\{[ \n]{0,9}"input"[ ]?:[ ]?"'), regex(r'"[ \n]{0,9}\}')
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
    properties = _object_of(tool).get("properties") if tool else None
    return properties if isinstance(properties, dict) else {}


def parameters_of(tool: Tool) -> list[tuple[str, Any, bool]]:
    """Return name, schema and whether it is required of each parameter.

    The schemas may refer to parts of the tool's.
    """
    required = _object_of(tool).get("required")
    needed = {key for key in required if isinstance(key, str)} if isinstance(required, list) else ()
    return [(key, schema, key in needed) for key, schema in properties_of(tool).items()]


def arguments_part(rules: Rules, tool: Tool) -> Part:
    """Return the JSON object of a tool's arguments.

    Raises:
        GrammarError: As value_part, but not if the tool is loose.
    """
    if tool.input is not None:
        return row(INPUT_START, tool.input.part(rules, in_json=True), INPUT_END)
    return _value(rules, tool.parameters, tool, ANY_OBJECT)


def value_part(rules: Rules, schema: Any, tool: Tool) -> Part:
    """Return the JSON of a parameter.

    Raises:
        GrammarError: It is no JSON schema, a grammar cannot express it, or it is too large; names
            the tool. Not if the tool is loose.
    """
    if tool.input is not None:
        return row('"', tool.input.part(rules, in_json=True), '"')
    return _value(rules, schema, tool, True)


def text_part(rules: Rules, schema: Any, tool: Tool, end: str) -> Part:
    """Return a string parameter as it is, up to and with what ends it.

    Args:
        end: A mark, with whitespace around it or not.

    Raises:
        GrammarError: As value_part.
    """
    mark = end.strip()
    before, _, behind = end.partition(mark)
    whole = before + mark
    if tool.input is not None:
        return row(tool.input.part(rules, end=whole, mark=mark), behind)
    try:
        with errors_of(f"tools.{tool.name[:80]}"):
            text = string_part(rules, schema, tool.parameters, tool.strict, whole, mark)
    except GrammarError:
        if not tool.loose:
            raise
        text = rules.until(mark)
    return row(text, behind)


def _value(rules: Rules, schema: Any, tool: Tool, otherwise: Any) -> Part:
    """Return the JSON of a schema; `otherwise`: the schema of a loose tool that has no grammar."""
    field = f"tools.{tool.name[:80]}"
    try:
        source = schema_lark(schema, field, tool.strict, tool.parameters, rules.spend)
        return rules.add("json", Source(source))
    except GrammarError:
        if not tool.loose:
            raise
        rules.spend(STEPS_OF_REFUSED)
        return rules.add("json", Source(schema_lark(otherwise)))


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
    try:
        return referred(reference, root)
    except GrammarError:
        return None
