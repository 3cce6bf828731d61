"""Messages of a chat, from OpenAI's shape to what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.server.chat.calls.hermes import instructions, written_calls
from ngramspec.server.chat.tools import Tools
from ngramspec.server.errors import bad_request, not_supported

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
Message = dict[str, Any]


def messages_of(given: Sequence[Mapping[str, Any]], system: str = "") -> list[Message]:
    """Return messages with text contents, calls with parsed arguments, and known roles.

    Args:
        given: As the client wrote them.
        system: System message for chats that have none.

    Raises:
        ApiError: A message does not have OpenAI's shape, or holds more than text.
    """
    if not given:
        raise bad_request("messages must not be empty", "messages")
    made = [_message(message, f"messages[{i}]") for i, message in enumerate(given)]
    if system and not any(message["role"] == "system" for message in made):
        made.insert(0, {"role": "system", "content": system})
    return made


def text_of(content: Any, field: str) -> str:
    """Return a content as one text: it is a text or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{field} must be a text or a list of parts", field)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
            raise not_supported(
                f"{field}[{index}] is of type {kind!r:.80}; this server takes text only",
                f"{field}[{index}]",
            )
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise bad_request(f"{field}[{index}] must have a text", f"{field}[{index}]")
        texts.append(text)
    return "\n".join(texts)


def without_tools(messages: Sequence[Message], tools: Tools) -> list[Message]:
    """Return messages for a template without tools: calls, results and tools become content."""
    made: list[Message] = []
    for message in messages:
        content = message["content"]
        if message.get("tool_calls"):
            calls = written_calls(message["tool_calls"])
            made.append({"role": "assistant", "content": "\n".join(filter(None, (content, calls)))})
        elif message["role"] == "tool":
            text = f"<tool_response>\n{content}\n</tool_response>"
            if made and made[-1].get("responses"):
                made[-1]["content"] += f"\n{text}"
            else:
                made.append({"role": "user", "content": text, "responses": True})
        else:
            made.append(dict(message))
    for message in made:
        message.pop("responses", None)
    if tools:
        if made[0]["role"] != "system":
            made.insert(0, {"role": "system", "content": ""})
        text = "\n\n".join(filter(None, (made[0]["content"], instructions(tools))))
        made[0] = {**made[0], "content": text}
    return made


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages for a template without a system role: the first one joins the next."""
    system, *rest = messages
    if not rest:
        return []
    text = f"{system['content']}\n{rest[0]['content']}" if system["content"] else rest[0]["content"]
    return [{**rest[0], "content": text}, *rest[1:]]


def _message(given: Mapping[str, Any], field: str) -> Message:
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(
            f"{field}.role must be one of {', '.join(ROLES)}, got {role!r:.80}", field
        )
    calls = given.get("tool_calls")
    if calls and not isinstance(calls, list):
        raise bad_request(f"{field}.tool_calls must be a list", f"{field}.tool_calls")
    if given.get("content") is None and not (role == "assistant" and (calls or "content" in given)):
        raise bad_request(f"{field}.content is required", f"{field}.content")
    made: Message = {
        "role": ROLES[role],
        "content": text_of(given.get("content"), f"{field}.content"),
    }
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(given.get(name), str):
            made[name] = given[name]
    if calls:
        made["tool_calls"] = [
            _call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return made


def _call(given: Any, field: str) -> dict[str, Any]:
    """Return a call with its arguments as an object, as templates expect."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{field} must have a function with a name", field)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{field}: the arguments are not JSON: {error}", field) from error
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": given["id"], **call} if isinstance(given.get("id"), str) else call
