"""Tools: what a chat may call, how a model writes calls, and grammars that force one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import ChatBody
from ngramspec.server.structured.gbnf import Rules, json_literal, literal
from ngramspec.server.structured.json_schema import add_schema

ANY_ARGUMENTS = {"type": "object", "properties": {}}
SPECIAL_MARKS = ("[TOOL_CALLS]", "<|python_tag|>")  # control tokens: hidden unless asked for


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any]  # a JSON schema
    given: Mapping[str, Any]  # as the client wrote it, for the template


@dataclass(frozen=True)
class Tools:
    """The tools of a request and whether they may or must be called."""

    tools: tuple[Tool, ...] = ()
    required: bool = False
    parallel: bool | None = None  # several calls in one answer; None = as the model likes

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the tools."""
        return frozenset(tool.name for tool in self.tools)


@dataclass(frozen=True)
class CallStyle:
    """How a model writes calls; its template tells."""

    start: str
    open: str  # before the name of a call
    middle: str  # between name and arguments
    close: str
    between: str
    end: str


HERMES = CallStyle("", '<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>", "\n", "")
MISTRAL = CallStyle("[TOOL_CALLS][", '{"name": ', ', "arguments": ', "}", ", ", "]")
LLAMA = CallStyle("", '{"name": ', ', "parameters": ', "}", "; ", "")

INSTRUCTIONS = """\
You can call these functions, each described by a JSON object:
{tools}

To call one, write nothing but a JSON object with its name and arguments between tags:
<tool_call>
{{"name": "the function", "arguments": {{"parameter": "value"}}}}
</tool_call>"""


def tools_of(body: ChatBody) -> Tools:
    """Return the tools of a chat; a choice of one leaves only that, none leaves none.

    Raises:
        ApiError: A tool or the choice is not as OpenAI describes them.
    """
    choice = body.tool_choice or ("auto" if body.tools else "none")
    if choice == "none" or not body.tools:
        if choice not in ("none", "auto"):
            raise bad_request("tool_choice is only allowed with tools", "tool_choice")
        return Tools()
    tools = tuple(_tool(given, f"tools[{i}]") for i, given in enumerate(body.tools))
    if isinstance(choice, dict):
        name = (choice.get("function") or choice).get("name")
        tools = tuple(tool for tool in tools if tool.name == name)
        if not tools:
            raise bad_request(f"tool_choice names {name!r}, which is not in tools", "tool_choice")
        return Tools(tools, True, False)
    if choice not in ("auto", "required"):
        raise bad_request(
            f"tool_choice must be none, auto, required or a function, got {choice!r}", "tool_choice"
        )
    return Tools(tools, choice == "required", body.parallel_tool_calls)


def style_of(template: str) -> CallStyle:
    """Return how the model with this chat template writes calls."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" not in template and '"parameters"' in template:
        return LLAMA
    return HERMES


def call_rule(rules: Rules, tools: Tools, style: CallStyle) -> str:
    """Add the rule of one call, or of several where that is wanted; return the text for it."""
    items = []
    for tool in tools.tools:
        name = tool.name[:80]
        arguments = add_schema(rules, tool.parameters, f"{name}-arguments", f"tools.{name}")
        head = f"{literal(style.open)} {json_literal(tool.name)} {literal(style.middle)}"
        items.append(rules.add(f"call-{name}", f"{head} {arguments} {literal(style.close)}"))
    call = rules.add("call", " | ".join(items))
    more = f"({literal(style.between)} {call})*" if tools.parallel else ""
    return " ".join(
        part for part in (literal(style.start), call, more, literal(style.end)) if part != '""'
    )


def instructions(tools: Tools) -> str:
    """Return the system text about tools for models whose template does not mention them."""
    described = (json.dumps(tool.given.get("function", tool.given)) for tool in tools.tools)
    return INSTRUCTIONS.format(tools="\n".join(described))


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return earlier calls as text, for models whose template does not know them."""
    made = []
    for call in calls:
        function = call.get("function", {})
        arguments = function.get("arguments", {})
        body = json.dumps({"name": function.get("name"), "arguments": arguments})
        made.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(made)


def _tool(given: Mapping[str, Any], field: str) -> Tool:
    function = given.get("function")
    if given.get("type", "function") != "function" or not isinstance(function, dict):
        raise bad_request(f"{field} must be a tool of type function", field)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{field}.function must have a name", field)
    parameters = function.get("parameters") or ANY_ARGUMENTS
    if not isinstance(parameters, dict):
        raise bad_request(f"{field}.function.parameters must be a JSON schema", field)
    return Tool(name, parameters, given)
