"""Tools: the functions that a chat can call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ngramspec.errors import ChatError
from ngramspec.text.chat.custom_tools import custom_function, enforced_input
from ngramspec.text.structured.lark_input import LarkInput

ANY_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """A function that the model can call."""

    name: str
    parameters: Mapping[str, Any]  # a JSON schema
    definition: Mapping[str, Any]  # as the client wrote it, for the template
    strict: bool = False  # refuse what a grammar cannot enforce of the parameters
    loose: bool = False  # leave the parameters free where no grammar can express them
    custom: bool = False  # the client knows one text, not parameters
    input: LarkInput | None = None  # what that text follows, None for any

    def described(self) -> dict[str, Any]:
        """Return the tool with the members that templates read."""
        function = self.definition["function"]
        description, parameters = function.get("description"), function.get("parameters")
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": description if isinstance(description, str) else "",
                "parameters": {} if parameters is None else parameters,
            },
        }


@dataclass(frozen=True)
class Tools:
    """The tools of a request and whether one must be called."""

    tools: tuple[Tool, ...] = ()
    required: bool = False
    parallel: bool | None = None  # several calls in one answer; None = allowed

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def several(self) -> bool:
        return self.parallel is not False

    def named(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def is_custom(self, name: str) -> bool:
        tool = self.named(name)
        return tool is not None and tool.custom

    @cached_property
    def _by_name(self) -> Mapping[str, Tool]:
        return {tool.name: tool for tool in reversed(self.tools)}


def tools_of(
    definitions: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None = None,
    parallel: bool | None = None,
) -> Tools:
    """Return the tools of a chat that may be called.

    Args:
        definitions: In OpenAI's shape; None for none.
        choice: OpenAI's tool_choice: only what it names may be called, nothing for "none".
        parallel: Several calls in one answer; None = allowed.

    Raises:
        ChatError: A tool or the choice does not have OpenAI's shape.
    """
    choice = choice or ("auto" if definitions else "none")
    if choice == "none" or not definitions:
        if choice not in ("none", "auto"):
            raise ChatError("tool_choice is only allowed with tools", "tool_choice")
        return Tools()
    tools = tuple(_tool(one, f"tools[{i}]") for i, one in enumerate(definitions))
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(tools, choice.get("allowed_tools"))
    if isinstance(choice, Mapping):
        name = _name_in(choice)
        tools = tuple(tool for tool in tools if tool.name == name)
        if not tools:
            raise ChatError(f"tool_choice names {name!r}, which is not in tools", "tool_choice")
        return Tools(tools, True, False)
    if choice not in ("auto", "required"):
        raise ChatError(
            f"tool_choice must be none, auto, required or a function, got {choice!r}", "tool_choice"
        )
    return Tools(tools, choice == "required", parallel)


def _allowed(tools: tuple[Tool, ...], choice: Any) -> tuple[tuple[Tool, ...], str]:
    """Return the tools that a choice allows, and the choice among them."""
    listed = choice.get("tools") if isinstance(choice, dict) else None
    if not isinstance(listed, list):
        raise ChatError("tool_choice must have a list of allowed tools", "tool_choice")
    names = [_name_in(one) for one in listed if isinstance(one, dict)]
    texts = {name for name in names if isinstance(name, str)}
    allowed = tuple(tool for tool in tools if tool.name in texts)
    if not allowed:
        raise ChatError("tool_choice allows none of the tools", "tool_choice")
    mode = choice.get("mode")
    return allowed, mode if isinstance(mode, str) else "auto"


def _name_in(choice: Mapping[str, Any]) -> Any:
    named = choice.get("function") or choice.get("custom") or choice
    return named.get("name") if isinstance(named, dict) else None


def _tool(definition: Any, field: str) -> Tool:
    if not isinstance(definition, Mapping):
        raise ChatError(f"{field} must be an object, got {definition!r:.80}", field)
    if definition.get("type") == "custom":
        return _custom(definition.get("custom"), field)
    if definition.get("type", "function") != "function":
        raise ChatError(f"{field} must be a tool of type function or custom", field)
    function = definition.get("function")
    if not isinstance(function, dict):
        raise ChatError(f"{field}.function must be an object", field)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ChatError(f"{field}.function must have a name", field)
    parameters = function.get("parameters") or ANY_ARGUMENTS
    if not isinstance(parameters, dict):
        raise ChatError(f"{field}.function.parameters must be a JSON schema", field)
    return Tool(name, parameters, definition, function.get("strict") is True)


def _custom(custom: Any, field: str) -> Tool:
    function = custom_function(custom, field)
    return Tool(
        name=function["name"],
        parameters=function["parameters"],
        definition={"type": "function", "function": function},
        strict=True,
        custom=True,
        input=enforced_input(custom, field),
    )
