"""ResponseTools: the functions and custom tools of a request, as functions of a chat."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.request.bodies import MAX_TOOLS

log = logging.getLogger(__name__)
Choice = str | dict[str, Any] | None


@dataclass(frozen=True)
class ClientTool:
    """A tool as the client knows it."""

    name: str
    namespace: str = ""
    custom: bool = False  # its input is a text


@dataclass(frozen=True)
class ResponseTools:
    """The tools that the model can call."""

    tools: Sequence[dict[str, Any]] = ()  # as chats have them
    origins: Mapping[str, ClientTool] = field(
        default_factory=dict
    )  # by the name that the model knows

    def origin(self, name: str) -> ClientTool:
        """Return a called tool as the client knows it."""
        return self.origins.get(name) or ClientTool(name)


def full_name(namespace: Any, name: str) -> str:
    """Return the name by which the model knows a function in a namespace, None for no namespace."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"


def response_tools(request_tools: Sequence[Mapping[str, Any]]) -> ResponseTools:
    """Return the tools of a request that the client runs, those in namespaces included.

    What OpenAI runs itself (web_search, ...) is left out with a line in the log, as llama-server
    does: Codex always sends some.

    Raises:
        ApiError: A function does not have its shape, or there are more than MAX_TOOLS.
    """
    tools: list[dict[str, Any]] = []
    origins: dict[str, ClientTool] = {}
    left_out: set[str] = set()
    for place, namespace, tool in _flat(request_tools):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            left_out.add(f"{kind!s:.80}")
            continue
        definition = _function(tool, place) if kind == "function" else _custom(tool, place)
        origin = ClientTool(definition["name"], namespace, kind == "custom")
        definition["name"] = full_name(namespace, origin.name)
        origins[definition["name"]] = origin
        tools.append({"type": kind, kind: definition})
        if len(tools) > MAX_TOOLS:
            raise bad_request(f"tools must have at most {MAX_TOOLS} members, got more", "tools")
    if left_out:
        log.warning("left out tools that this server cannot offer: %.200a", ", ".join(left_out))
    return ResponseTools(tools, origins)


def chat_choice(choice: Choice) -> Choice:
    """Return the choice among tools as chats have it.

    Raises:
        ApiError: The choice is none of a function, or of a list of functions.
    """
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind in ("function", "custom"):
        if not isinstance(choice.get("name"), str):
            raise bad_request("tool_choice must have a name", "tool_choice")
        return _named(choice)
    if kind != "allowed_tools":
        words = f"tool_choice of type {kind!r:.80} is not supported: this server calls functions"
        raise not_supported(words, "tool_choice")
    allowed = choice.get("tools")
    if not isinstance(allowed, list):
        raise bad_request("tool_choice must have a list of tools", "tool_choice")
    named = [
        _named(one) for one in allowed if isinstance(one, dict) and isinstance(one.get("name"), str)
    ]
    return {"type": kind, kind: {"mode": choice.get("mode"), "tools": named}}


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    name = full_name(choice.get("namespace"), choice["name"])
    return {"type": "function", "function": {"name": name}}


def _flat(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (place in the body, namespace or "", tool) of every tool."""
    for index, tool in enumerate(tools):
        place, inner = f"tools[{index}]", tool.get("tools")
        if tool.get("type") != "namespace" or not isinstance(inner, list):
            yield place, "", tool
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{place} must have a name", place)
        for number, member in enumerate(inner):
            if not isinstance(member, dict):
                raise bad_request(f"{place}.tools must be objects", place)
            yield f"{place}.tools[{number}]", name, member


def _custom(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a custom tool as chats have it."""
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise bad_request(f"{place} must have a name", place)
    names = ("name", "description", "format")
    return {key: tool[key] for key in names if tool.get(key) is not None}


def _function(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a function as chats have it; the members of chats are accepted too."""
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not name:
        raise bad_request(f"{place} must have a name", place)
    if not isinstance(inner.get("parameters"), (dict, type(None))):
        raise bad_request(f"{place}.parameters must be a JSON schema", place)
    names = ("name", "description", "parameters", "strict")
    return {key: inner[key] for key in names if inner.get(key) is not None}
