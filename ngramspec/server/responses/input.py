"""From the items of `input` to the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.server.chat.turns import Turns
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.responses.tools import full_name
from ngramspec.text.chat.messages import text_of

ROLES = ("user", "assistant", "system", "developer")
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
RESULTS = ("function_call_output", "custom_tool_call_output")


def messages_of(
    content: str | Sequence[Mapping[str, Any]], instructions: str, late_system: bool
) -> list[dict[str, Any]]:
    """Return the messages of an input.

    Args:
        content: A text of the user, or items.
        instructions: What the model is told first, "" for nothing.
        late_system: As Turns takes it.

    Raises:
        ApiError, ChatError: An item is not valid, or of a type that this server does not take.
    """
    if content == [] and not instructions:
        raise bad_request("input must not be empty", "input")
    turns = Turns(late_system)
    if instructions:
        turns.say("system", instructions)
    if isinstance(content, str):
        turns.say("user", content)
    else:
        for index, item in enumerate(content):
            _add(turns, item, f"input[{index}]")
    return turns.messages("input")


def _add(turns: Turns, item: Mapping[str, Any], field: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        _add_message(turns, item, field)
    elif kind == "reasoning":
        text = _reasoning(item)
        if text:
            turns.reason(text)
    elif isinstance(kind, str) and kind in CALLS:
        name = full_name(item.get("namespace"), _text(item, "name", field))
        written = _text(item, CALLS[kind], field)
        arguments = {"input": written} if kind == "custom_tool_call" else _arguments(written)
        turns.call(_text(item, "call_id", field), name, arguments)
    elif kind in RESULTS:
        text = text_of(item.get("output"), f"{field}.output")
        turns.result(_text(item, "call_id", field), text)
    elif kind == "item_reference":
        raise not_supported(f"{field} refers to an item, and this server keeps none", field)
    else:
        raise not_supported(
            f"{field} is of type {kind!r:.80}, which this server cannot read", field
        )


def _add_message(turns: Turns, item: Mapping[str, Any], field: str) -> None:
    role = item.get("role")
    if role not in ROLES:
        raise bad_request(
            f"{field}.role must be one of {', '.join(ROLES)}, got {role!r:.80}", field
        )
    if item.get("content") is None:
        raise bad_request(f"{field}.content is required", f"{field}.content")
    text = text_of(item["content"], f"{field}.content")
    if role == "assistant":
        turns.answer(text)
    else:
        turns.say("user" if role == "user" else "system", text)


def _reasoning(item: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item, "" if it has none that can be read."""
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [
            part["text"]
            for part in (parts if isinstance(parts, list) else ())
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if any(texts):
            return "\n".join(texts)
    return ""


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments. Clients also send back what a model wrote wrongly."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"invalid": text}


def _text(item: Mapping[str, Any], name: str, field: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{field}.{name} must be a text", f"{field}.{name}")
    return value
