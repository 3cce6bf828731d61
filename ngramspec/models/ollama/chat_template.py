"""A conversation as the text that a model continues, by Ollama's rules for chat templates.

A template that uses .Messages sees the whole conversation. Any other template is written once per
turn, with .System, .Prompt and .Response; the last turn ends at .Response. With a suffix a template
is written once, with .Prompt and .Suffix.

A template sees Ollama's names of fields, such as .ToolCalls and .Function.Name. As JSON, or written
whole, a value has the API's names: the known ones in Ollama's order, then the others in their own.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal as OneOf
from typing import TypeAlias

from ngramspec.errors import InputError
from ngramspec.text.gotemplate import (
    JsonList,
    JsonMap,
    Record,
    Template,
    TemplateFunction,
    json_text,
)
from ngramspec.text.gotemplate.nodes import Action, Branch, Command, Field, Node, Operand, Pipe
from ngramspec.text.limits import Budget, RenderLimits

Think: TypeAlias = bool | OneOf["low", "medium", "high"] | None

_RESPONSE = Action(Pipe((), False, (Command((Field(("Response",)),), 0),)))
_LEVELS = ("low", "medium", "high")
_CAPABILITIES = {"tools": "tools", "suffix": "insert", "think": "thinking", "messages": "messages"}
_TYPESCRIPT = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_TYPESCRIPT |= {"array": "any[]", "object": "Record<string, any>", "null": "null"}


@dataclass(frozen=True)
class ChatTemplate:
    """A parsed chat template; threads may share it.

    template: The one that writes a whole turn.
    names: The fields that it uses, in lower case.
    """

    template: Template
    names: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> ChatTemplate:
        """Parse a chat template.

        Raises:
            FormatError: Not Go's grammar; names the line, what was expected and what is there.
            InputError: Longer than 2**20 characters, or nested too deep.

        Cost: some 50 us per action; the last 32 texts are cached.
        """
        return _parse(text)

    @property
    def capabilities(self) -> frozenset[str]:
        """What the template uses, of tools, insert, thinking, messages."""
        return frozenset(own for name, own in _CAPABILITIES.items() if name in self.names)

    def render(
        self,
        messages: Sequence[Mapping[str, object]] = (),
        system: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        prompt: str | None = None,
        suffix: str | None = None,
        think: Think = None,
        today: datetime.date | None = None,
        limits: RenderLimits | None = None,
    ) -> str:
        """Write a conversation; see render_chat. limits: Default: Limits()."""
        writer = _Writer(self.template, _thinking(think), today, Budget(limits))
        if suffix:
            if messages:
                raise InputError("suffix takes a prompt, not messages")
            if "suffix" not in self.names:
                raise InputError("the template has no .Suffix: the model cannot insert")
            return writer.once({"Prompt": prompt or "", "Suffix": suffix, "Response": ""})
        values = message_values(messages)
        if prompt is not None:
            values.append(text_message("user", prompt))
        if system and not (values and values[0].fields["Role"] == "system"):
            values.insert(0, text_message("system", system))
        values = _collated(values)
        if "messages" not in self.names:
            return writer.turns(values)
        parts = [_content(value) for value in values if value.fields["Role"] == "system"]
        data = {"System": "\n\n".join(parts), "Messages": values, "Response": ""}
        return writer.once({**data, "Tools": tool_values(() if tools is None else tools)})


def render_chat(
    template_text: str,
    messages: Sequence[Mapping[str, object]] = (),
    system: str | None = None,
    tools: Sequence[Mapping[str, object]] | None = None,
    prompt: str | None = None,
    suffix: str | None = None,
    think: Think = None,
    today: datetime.date | None = None,
) -> str:
    """Return the text of a conversation that a model continues.

    Consecutive messages of one role become one, except those of tools.

    Args:
        template_text: The template of a model.
        messages: With role, content and the other fields of Ollama's API.
        system: The model's own system message; used unless the first message is one.
        tools: As in the API; a template without .Tools does not show them (see `capabilities`).
        prompt: A last message of the user; with a suffix, the text before the gap.
        suffix: The text after a gap to fill; not together with messages.
        think: Whether, or how much, the model should think; None = unspecified.
        today: What currentDate writes; default: the day of the local clock.

    Raises:
        FormatError: The template is not Go's, or does not fit the data; names the line.
        InputError: A message or tool has a field of a wrong type, think is unknown, suffix comes
            with messages or for a template without .Suffix, or the template exceeds a limit.
    """
    parsed = ChatTemplate.parse(template_text)
    return parsed.render(messages, system, tools, prompt, suffix, think, today)


@functools.lru_cache(maxsize=32)
def _parse(text: str) -> ChatTemplate:
    template = Template.parse(text, FUNCTIONS)
    names = template.names()
    if not names & {"messages", "response"}:
        template = template.with_main((*template.main, _RESPONSE))
        names |= {"response"}
    return ChatTemplate(template, names)


def _thinking(think: Think) -> dict[str, object]:
    if not (think is None or isinstance(think, bool) or think in _LEVELS):
        raise InputError(f"think must be true, false, {', '.join(_LEVELS)}: {think!r}")
    level = "medium" if think is True else think or ""
    return {"Think": bool(think), "ThinkLevel": level, "IsThinkSet": think is not None}


def _content(message: Record) -> str:
    return str(message.fields["Content"])


def _collated(messages: Sequence[Record]) -> list[Record]:
    """Merge consecutive messages of one role, except those of tools."""
    collated: list[Record] = []
    for message in messages:
        role = message.fields["Role"]
        if collated and role == collated[-1].fields["Role"] and role != "tool":
            collated[-1] = merged(collated[-1], message)
        else:
            collated.append(message)
    return collated


class _Writer:
    """Writes a template once or more, within one budget.

    thinking: Fields that every rendering has.
    """

    def __init__(
        self,
        template: Template,
        thinking: dict[str, object],
        today: datetime.date | None,
        budget: Budget,
    ) -> None:
        self.template = template
        self.thinking = thinking
        self.dates = dates(today)
        self.budget = budget

    def once(self, data: Mapping[str, object]) -> str:
        return self.template.render({**data, **self.thinking}, self.budget, self.dates)

    def turns(self, messages: Sequence[Record]) -> str:
        """Write a conversation turn by turn; the last turn ends at .Response."""
        pieces: list[str] = []
        turn = _Turn()
        for message in messages:
            role, content = message.fields["Role"], _content(message)
            if turn.ends_before(role):
                pieces.append(self.once(turn.data()))
                turn = _Turn()
            if role == "system":
                turn = replace(turn, system=content)
            elif role == "user":
                turn = replace(turn, prompt=content)
            elif role == "assistant":
                turn = replace(turn, response=content)
        self.template = self.template.with_main(_Cut().nodes(self.template.main))
        return "".join([*pieces, self.once(turn.data())])


@dataclass(frozen=True)
class _Turn:
    """What was said since the last answer."""

    system: str = ""
    prompt: str = ""
    response: str = ""

    def ends_before(self, role: object) -> bool:
        if role == "system":
            return bool(self.prompt or self.response)
        return role == "user" and bool(self.response)

    def data(self) -> dict[str, str]:
        return {"System": self.system, "Prompt": self.prompt, "Response": self.response}


class _Cut:
    """Removes everything after the first .Response.

    ended: Whether .Response was seen.
    """

    def __init__(self) -> None:
        self.ended = False

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        cut: list[Node] = []
        for node in nodes:
            if self.ended:
                break
            match node:
                case Action(pipe):
                    until = self.pipe(pipe)
                    cut += [Action(until)] if until else []
                case Branch():
                    body, otherwise = self.nodes(node.body), self.nodes(node.otherwise)
                    cut.append(replace(node, body=body, otherwise=otherwise))
                case _:
                    cut.append(node)
        return tuple(cut)

    def pipe(self, pipe: Pipe) -> Pipe | None:
        """Return a pipe up to .Response; None if a command of it has nothing left."""
        commands: list[Command] = []
        for command in pipe.commands:
            operands = [operand for operand in map(self.operand, command.operands) if operand]
            if not operands:
                return None
            commands.append(replace(command, operands=tuple(operands)))
        return replace(pipe, commands=tuple(commands))

    def operand(self, operand: Operand) -> Operand | None:
        if self.ended:
            return None
        match operand:
            case Field(names):
                self.ended = "Response" in names
            case Pipe():
                return self.pipe(operand)
        return operand


def dates(today: datetime.date | None = None) -> dict[str, TemplateFunction]:
    """Return the functions that depend on the day. today: Default: that of the local clock."""

    def date(days: int) -> str:
        return ((today or datetime.date.today()) - datetime.timedelta(days)).isoformat()

    return {
        "currentDate": TemplateFunction(lambda values, budget: date(0), 0),
        "yesterdayDate": TemplateFunction(lambda values, budget: date(1), 0),
    }


def typescript_type(value: object) -> str:
    """Return the TypeScript type of a property of a tool; "any" for everything else."""
    if not isinstance(value, Record):
        return "any"
    choices = value.fields.get("AnyOf")
    if isinstance(choices, list) and choices:
        return " | ".join(map(typescript_type, choices))
    types = value.fields.get("Type")
    several = types if isinstance(types, list) else [types]
    return " | ".join(_TYPESCRIPT.get(str(one), "any") for one in several) or "any"


def _json(values: Sequence[object], budget: Budget) -> str:
    return budget.text(json_text(values[0]))


def _typescript(values: Sequence[object], budget: Budget) -> str:
    return typescript_type(values[0])


# What Ollama adds to the functions of Go's templates.
FUNCTIONS: Mapping[str, TemplateFunction] = {
    **dates(),
    "json": TemplateFunction(_json, 1, 1),
    "toJson": TemplateFunction(_json, 1, 1),
    "toTypeScriptType": TemplateFunction(_typescript, 1, 1),
}


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
