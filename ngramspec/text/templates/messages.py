"""Messages in OpenAI's shape, as a template with certain capabilities takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.errors import InputError
from ngramspec.text.templates.capabilities import Capabilities

Message = dict[str, Any]


def messages_for(
    messages: Sequence[Mapping[str, Any]], can: Capabilities, keeps_developer: bool
) -> list[Message]:
    """Return messages for a template. They share no list or object with those given.

    Args:
        messages: With a role and a content: a text, or a list of parts with a type and a text.
        can: What the template takes.
        keeps_developer: The template knows the role developer; for others it is system.

    Raises:
        InputError: Arguments of a call are not JSON.
    """
    copies: list[Message] = [copied(message) for message in messages]
    for message in copies:
        if message.get("role") == "developer" and not keeps_developer:
            message["role"] = "system"
    if copies and copies[0].get("role") == "system" and not can.supports_system_role:
        copies = _without_system(copies)
    for message in copies:
        if can.supports_object_arguments:
            _parse_arguments(message)
    return [with_contents(message, can) for message in copies]


def with_contents(message: Mapping[str, Any], can: Capabilities) -> Message:
    """Return a message whose content is a text or a list of parts, as the template takes it."""
    copy = dict(message)
    if "content" not in copy and "tool_calls" not in copy:
        return copy
    content = copy.get("content")
    copy["content"] = content = "" if content is None else content
    if isinstance(content, str):
        if can.supports_typed_content and not can.supports_string_content:
            copy["content"] = [{"type": "text", "text": content}]
    elif can.supports_string_content and not can.supports_typed_content:
        copy["content"] = text_of(content)
    return copy


def text_of(content: Any, between: str = "\n") -> str:
    """Return a content as one text.

    between: What separates its parts.
    """
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return between.join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def copied(value: Any) -> Any:
    """Return JSON data with lists and objects of its own."""
    if isinstance(value, Mapping):
        return {name: copied(part) for name, part in value.items()}
    return list(map(copied, value)) if isinstance(value, list | tuple) else value


def _parse_arguments(message: Message) -> None:
    """Turn the arguments of calls from texts into objects."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _parsed(function["arguments"])


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the arguments of a tool call are not JSON: {error}") from error


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages for a template without a system role: the first one joins the next."""
    system, *rest = messages
    if not rest:
        return []
    text = "\n".join((text_of(system.get("content")), text_of(rest[0].get("content"))))
    return [{**rest[0], "content": text}, *rest[1:]]
