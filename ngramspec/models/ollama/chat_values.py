"""Messages and tools of the API as the values that chat templates see.

A template sees Ollama's names of fields, such as .ToolCalls and .Function.Name. As JSON, or written
whole, a value has the API's names: the known ones in Ollama's order, then the others in their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ngramspec.errors import InputError
from ngramspec.text.gotemplate import JsonList, JsonMap, Record


@dataclass(frozen=True)
class _Member:
    """One field of an Ollama struct.

    name: In JSON.
    field: In templates.
    convert: Takes a value and where it is; raises InputError.
    zero: What templates see if it is missing.
    """

    name: str
    field: str
    convert: Callable[[object, str], object]
    zero: object = None


def message_values(messages: Sequence[object]) -> list[Record]:
    """Return messages as templates see them.

    Args:
        messages: Mappings with role and content, and the other fields of Ollama's API. The
            arguments of a tool call are an object, or its JSON text as in OpenAI's API.

    Raises:
        InputError: A field of a wrong type; names it.
    """
    items = enumerate(_list(messages, "messages"))
    return [_record(item, _MESSAGE, f"messages[{at}]") for at, item in items]


def tool_values(tools: Sequence[object]) -> JsonList:
    """Return tools as templates see them.

    Args:
        tools: Mappings with type and function, as in the API.

    Raises:
        InputError: A field of a wrong type; names it.
    """
    items = enumerate(_list(tools, "tools"))
    return JsonList(_record(item, _TOOL, f"tools[{at}]") for at, item in items)


def text_message(role: str, content: str) -> Record:
    """Return a message that holds only text."""
    return _record({"role": role, "content": content}, _MESSAGE, "message")


def merged(one: Record, other: Record) -> Record:
    """Return two messages of one role as one: an empty line between texts, all tool calls."""
    content = f"{one.fields['Content']}\n\n{other.fields['Content']}"
    calls = [*_list(one.fields["ToolCalls"], ""), *_list(other.fields["ToolCalls"], "")]
    members = {**one.members, "content": content}
    if calls:
        members["tool_calls"] = calls
    return Record({**one.fields, "Content": content, "ToolCalls": calls}, members)


def _record(value: object, layout: Sequence[_Member], where: str) -> Record:
    source = _mapping(value, where)
    fields: dict[str, object] = {}
    members: dict[str, object] = {}
    for member in layout:
        entry = source.get(member.name)
        if entry is None:
            fields[member.field] = member.zero
        else:
            converted = member.convert(entry, f"{where}.{member.name}")
            fields[member.field] = members[member.name] = converted
    names = {member.name for member in layout}
    members |= {key: item for key, item in source.items() if key not in names}
    return Record(fields, members)


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be an object, not {type(value).__name__}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be a text, not {type(value).__name__}")
    return value


def _role(value: object, where: str) -> str:
    role = _text(value, where).lower()
    if not role:
        raise InputError(f"{where} must be system, user, assistant or tool, not empty")
    return role


def _integer(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{where} must be an integer, not {type(value).__name__}")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} must be a list, not {type(value).__name__}")
    return list(value)


def _anything(value: object, where: str) -> object:
    return value


def _type(value: object, where: str) -> object:
    """Return a type of JSON schema: a text, or a list of them if there are several."""
    if isinstance(value, str):
        return value
    types = [_text(item, f"{where}[{at}]") for at, item in enumerate(_list(value, where))]
    return types[0] if len(types) == 1 else types


def _arguments(value: object, where: str) -> JsonMap:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} must be an object or its JSON text: {error}") from None
    return JsonMap(_mapping(value, where))


def _records(layout: Sequence[_Member]) -> Callable[[object, str], object]:
    def convert(value: object, where: str) -> list[Record]:
        items = enumerate(_list(value, where))
        return [_record(item, layout, f"{where}[{at}]") for at, item in items]

    return convert


def _one(layout: Sequence[_Member]) -> Callable[[object, str], object]:
    return lambda value, where: _record(value, layout, where)


def _properties(value: object, where: str) -> JsonMap:
    items = _mapping(value, where).items()
    return JsonMap((name, _record(item, _PROPERTY, f"{where}.{name}")) for name, item in items)


def _choices(value: object, where: str) -> object:
    return _records(_PROPERTY)(value, where)


_PROPERTY = (
    _Member("anyOf", "AnyOf", _choices, []),
    _Member("type", "Type", _type, ""),
    _Member("items", "Items", _anything),
    _Member("description", "Description", _text, ""),
    _Member("enum", "Enum", _list, []),
    _Member("properties", "Properties", _properties, JsonMap()),
    _Member("required", "Required", _list, []),
)
_PARAMETERS = (
    _Member("type", "Type", _type, ""),
    _Member("$defs", "Defs", _anything),
    _Member("items", "Items", _anything),
    _Member("required", "Required", _list, []),
    _Member("properties", "Properties", _properties, JsonMap()),
)
_FUNCTION = (
    _Member("name", "Name", _text, ""),
    _Member("description", "Description", _text, ""),
    _Member("parameters", "Parameters", _one(_PARAMETERS), _record({}, _PARAMETERS, "")),
)
_TOOL = (
    _Member("type", "Type", _text, ""),
    _Member("items", "Items", _anything),
    _Member("function", "Function", _one(_FUNCTION), _record({}, _FUNCTION, "")),
)
_CALLED = (
    _Member("index", "Index", _integer, 0),
    _Member("name", "Name", _text, ""),
    _Member("arguments", "Arguments", _arguments, JsonMap()),
)
_CALL = (
    _Member("id", "ID", _text, ""),
    _Member("function", "Function", _one(_CALLED), _record({}, _CALLED, "")),
)
_MESSAGE = (
    _Member("role", "Role", _role, ""),
    _Member("content", "Content", _text, ""),
    _Member("thinking", "Thinking", _text, ""),
    _Member("images", "Images", _list, []),
    _Member("tool_calls", "ToolCalls", _records(_CALL), []),
    _Member("tool_name", "ToolName", _text, ""),
    _Member("tool_call_id", "ToolCallID", _text, ""),
)
