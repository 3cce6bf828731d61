"""What a chat template can do, found out as llama-server does: by watching what it reads.

Example conversations are rendered; their texts, lists and objects note what the template does with
them. The names are those of `chat_template_caps` in llama-server's /props.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import Frame

from ngramspec.errors import InputError
from ngramspec.text.limits import RenderLimits
from ngramspec.text.templates.sandbox import Generator, Sandbox
from ngramspec.text.templates.variables import kept_reasoning, reasoning_effort

LIMITS = RenderLimits(
    steps=20_000, characters=1 << 18
)  # of an example; templates take some hundreds
PROBE = "probe of a text"
THOUGHT = "probe of a thought"
USER = {"role": "user", "content": "a question"}
SAID = {"role": "assistant", "content": "an answer"}
AS_LIST = frozenset(("selectattr", "array_access"))
TOOLS = [
    {
        "name": "tool",
        "type": "function",
        "function": {
            "name": "tool1",
            "description": "a tool to try",
            "parameters": {
                "type": "object",
                "properties": {"arg": {"type": "string", "description": "what it takes"}},
                "required": ["arg"],
            },
        },
    }
]


@dataclass(frozen=True)
class Capabilities:
    """What a chat template takes. The defaults hold where an example cannot be rendered."""

    supports_string_content: bool = True
    supports_typed_content: bool = False
    supports_tools: bool = True
    supports_tool_calls: bool = True
    supports_parallel_tool_calls: bool = True
    supports_system_role: bool = True
    supports_preserve_reasoning: bool = False
    supports_reasoning_effort: bool = False
    supports_object_arguments: bool = False

    def as_dict(self) -> dict[str, bool]:
        return dataclasses.asdict(self)


def capabilities_of(template: str) -> Capabilities:
    """Return what a valid template in Jinja can do.

    Cost: up to nine renderings of a few messages, each within the limits of the sandbox.
    """
    render = functools.partial(_Probing().render, template)
    flags = {**_contents(render), "supports_system_role": _system_role(render)}
    flags |= _tools(render)
    flags["supports_preserve_reasoning"] = _preserved_reasoning(render)
    flags["supports_reasoning_effort"] = _reasoning_effort(render)
    return Capabilities(**flags)


class _Seen:
    """Notes that a template has read a value, and what it did with it."""

    used: bool
    done: set[str]

    def note(self, action: str = "") -> None:
        self.used = True
        if action:
            self.done.add(action)

    def reset(self) -> None:
        self.used, self.done = False, set()


class _Text(str, _Seen):
    pass


class _List(list, _Seen):  # type: ignore[type-arg]
    pass


class _Object(dict, _Seen):  # type: ignore[type-arg]
    pass


class _Watching(Generator):
    """Writes code that notes which variables are read, and what loops run over."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = self.call("looped", [cast("nodes.Expr", node.iter)])
        super().visit_For(node, frame)

    def visit_Name(self, node: nodes.Name, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Name(node, frame)
            return
        self.write("environment.noted(")
        super().visit_Name(node, frame)
        self.write(")")


class _Probing(Sandbox):
    """Renders examples whose values note what happens to them."""

    code_generator_class = _Watching

    def render(
        self, template: str, messages: Any, tools: Any = (), **variables: Any
    ) -> tuple[str | None, dict[str, Any]]:
        """Return the text of an example, None if the template refuses it, and its values."""
        names = {"raise_exception": _raise, "strftime_now": str}
        values = {
            "messages": watched(messages),
            "tools": watched(list(tools)),
            "bos_token": "",
            "eos_token": "",
            "add_generation_prompt": True,
            **watched(variables),
        }
        with self.limited(LIMITS):
            try:
                return self._template(template).render({**names, **values}), values
            except Exception:  # whatever a template may run into
                return None, values

    @functools.cache  # noqa: B019  # lives as long as the examples
    def _template(self, template: str) -> Any:
        return self.from_string(template)

    def noted(self, value: Any) -> Any:
        if isinstance(value, _Seen):
            value.note()
        return value

    def looped(self, value: Any) -> Any:
        """Note that a loop runs over a value; in llama.cpp, none runs over texts."""
        if isinstance(value, _Seen):
            value.note("array_access")
        if isinstance(value, str):
            raise InputError("a loop runs over a text")
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, _Seen):
            obj.note(attribute)
        return self.noted(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, _Seen):
            obj.note("array_access" if isinstance(argument, int) else "object_access")
        return self.noted(super().getitem(obj, argument))

    def used_by(self, name: str, values: list[Any]) -> None:
        """Note what a filter or test reads; some read all that a value holds."""
        if values and isinstance(values[0], _Seen):
            values[0].note(name)
        if name in ("tojson", "string") and values:
            _note_all(values[0])


def watched(value: Any) -> Any:
    """Return a copy of JSON data that notes what is done with it."""
    copy: Any = value
    if isinstance(value, str):
        copy = _Text(value)
    elif isinstance(value, dict):
        copy = _Object((name, watched(part)) for name, part in value.items())
    elif isinstance(value, list):
        copy = _List(map(watched, value))
    if isinstance(copy, _Seen):
        copy.reset()
    return copy


def _note_all(value: Any) -> None:
    left, seen = [value], set()
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, _Seen):
            part.used = True
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part


def _raise(message: Any) -> None:
    raise ValueError


Render = Callable[..., tuple[str | None, dict[str, Any]]]


def _contents(render: Render) -> dict[str, bool]:
    """Return whether contents may be texts, and whether they may be lists of parts."""
    text, values = render([{"role": "user", "content": PROBE}])
    content = values["messages"][0]["content"]
    as_list = bool(AS_LIST & content.done)
    takes_text = text is not None and not (as_list and PROBE not in text)
    if "is string" in content.done:
        text, values = render([{"role": "user", "content": []}])
        content = values["messages"][0]["content"]
        as_list = as_list or (text is not None and bool(AS_LIST & content.done))
    return {"supports_string_content": takes_text, "supports_typed_content": as_list}


def _system_role(render: Render) -> bool:
    _, values = render([{"role": "system", "content": "an instruction"}, USER])
    return bool(values["messages"][0]["content"].used)


def _calls(arguments: Any, count: int) -> list[Any]:
    calls = [
        {
            "id": f"call0000{number + 1}",
            "type": "function",
            "function": {"name": "tool1", "arguments": arguments},
        }
        for number in range(count)
    ]
    answer = {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"}
    reply = {"role": "assistant", "content": "the tool said so"}
    return [USER, {"role": "assistant", "content": "", "tool_calls": calls}, answer, reply, USER]


def _tools(render: Render) -> dict[str, bool]:
    flags = dict.fromkeys(("supports_tools", "supports_tool_calls"), True)
    objects = False
    text, values = render(_calls({"arg": "value"}, 1), TOOLS)
    if text is not None:
        calls = _read_tools(values, flags)
        if calls.used:
            objects = bool(calls[0]["function"]["arguments"]["arg"].used)
    if not objects:
        text, values = render(_calls('{"arg": "value"}', 1), TOOLS)
        if text is None:
            flags = dict.fromkeys(flags, False)
        else:
            _read_tools(values, flags)
    arguments: Any = {"arg": "value"} if objects else '{"arg": "value"}'
    text, values = render(_calls(arguments, 2), TOOLS)
    second = values["messages"][1]["tool_calls"][1]["function"]
    parallel = text is not None and second.used
    return {**flags, "supports_object_arguments": objects, "supports_parallel_tool_calls": parallel}


def _read_tools(values: dict[str, Any], flags: dict[str, bool]) -> Any:
    """Note in `flags` what a rendering did not read; return the calls."""
    calls = values["messages"][1]["tool_calls"]
    if not values["tools"][0]["function"]["name"].used:
        flags["supports_tools"] = False
    if not calls.used:
        flags["supports_tool_calls"] = False
    return calls


def _preserved_reasoning(render: Render) -> bool:
    """Return whether the template can show the reasoning of all earlier turns."""
    chat = [
        USER,
        {**SAID, "reasoning_content": THOUGHT},
        USER,
        {**SAID, "reasoning_content": "a thought"},
        USER,
    ]
    text, _ = render(chat, enable_thinking=True, **kept_reasoning(True))
    return THOUGHT in (text or "")


def _reasoning_effort(render: Render) -> bool:
    effort = _Text("low")
    effort.reset()
    names = dict.fromkeys(reasoning_effort("low"), effort)
    _, values = render([USER], enable_thinking=True, **names)
    return any(values[name].used for name in names)
