"""Messages of a chat, from OpenAI's shape to what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.errors import ChatError
from ngramspec.text.chat.custom_tools import INPUT
from ngramspec.text.chat.tools import Tool, Tools

SYSTEM = ("system", "developer")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
Message = dict[str, Any]
# Of models whose template knows no tools: in the format of Hermes, as Qwen and others write.
INSTRUCTIONS = """\
You can call these functions, each described by a JSON object:
{tools}

To call one, write nothing but a JSON object with its name and arguments between tags:
<tool_call>
{{"name": "the function", "arguments": {{"parameter": "value"}}}}
</tool_call>"""


def messages_of(
    messages: Sequence[Mapping[str, Any]], system: str = "", field: str = "messages"
) -> list[Message]:
    """Return messages with the members that templates read, as llama-server reads them.

    A content is a text or a list of text parts; arguments of calls are texts.

    Args:
        messages: As the client wrote them.
        system: System message for chats that have none.
        field: The request's name for them.

    Raises:
        ChatError: A message does not have OpenAI's shape, or holds more than text.
    """
    if not isinstance(messages, Sequence):
        raise ChatError(f"{field} must be a list of messages, got {messages!r:.80}", field)
    if not messages:
        raise ChatError(f"{field} must not be empty", field)
    chat = [_message(message, f"{field}[{i}]") for i, message in enumerate(messages)]
    if system and not any(message["role"] in SYSTEM for message in chat):
        chat.insert(0, {"role": "system", "content": system})
    return chat


def for_template(
    messages: Sequence[Message], tools: Tools, listed: Sequence[Tool] | None, writes_calls: bool
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Return messages and tools for a template; one that knows no tools gets them as text.

    Args:
        messages: As messages_of returns them.
        tools: Those that may be called.
        listed: Those that the template tells the model of; None: it tells of none.
        writes_calls: The template writes earlier calls.

    Raises:
        ChatError: Arguments of an earlier call that becomes text are not JSON.
    """
    chat = list(messages)
    if listed is None and not writes_calls:
        chat = without_tools(chat, tools)
    return chat, [tool.described() for tool in listed or ()]


def text_of(content: Any, field: str) -> str:
    """Return a content as one text: it is a text or a list of text parts.

    Raises:
        ChatError: It is neither, or a part is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError(f"{field} must be a text or a list of parts", field)
    return "\n".join(_texts(content, field))


def _texts(parts: Sequence[Any], field: str) -> list[str]:
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
            place = f"{field}[{index}]"
            text = f"{place} is of type {kind!r:.80}; a chat takes text only"
            raise ChatError(text, place, supported=False)
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise ChatError(f"{field}[{index}] must have a text", f"{field}[{index}]")
        texts.append(text)
    return texts


def without_tools(messages: Sequence[Message], tools: Tools) -> list[Message]:
    """Return messages for a template without tools: calls, results and tools become content."""
    chat: list[Message] = []
    results: dict[int, list[str]] = {}  # of tools, by the message that gets them
    for message in messages:
        content = text_of(message["content"], "content")
        if message.get("tool_calls"):
            calls = _written_calls(with_objects(message)["tool_calls"])
            chat.append({"role": "assistant", "content": "\n".join(filter(None, (content, calls)))})
        elif message["role"] == "tool":
            text = f"<tool_response>\n{content}\n</tool_response>"
            if len(chat) - 1 in results:
                results[len(chat) - 1].append(text)
            else:
                results[len(chat)] = [text]
                chat.append({"role": "user"})
        else:
            chat.append(dict(message))
    for index, texts in results.items():
        chat[index]["content"] = "\n".join(texts)
    if tools:
        if not chat or chat[0]["role"] not in SYSTEM:
            chat.insert(0, {"role": "system", "content": ""})
        own = text_of(chat[0]["content"], "content")
        text = "\n\n".join(filter(None, (own, _instructions(tools))))
        chat[0] = {**chat[0], "content": text}
    return chat


def with_objects(message: Message) -> Message:
    """Return a message whose calls have JSON data as their arguments.

    Raises:
        ChatError: They are not JSON.
    """
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = {"arguments": _arguments(call)}
        calls.append({**call, "function": {**call["function"], **arguments}})
    return {**message, "tool_calls": calls} if calls else dict(message)


def _arguments(call: Mapping[str, Any]) -> Any:
    try:
        return json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError) as error:
        text = f"the arguments of a tool call are not JSON: {error}"
        raise ChatError(text, "messages") from error


def _message(item: Any, field: str) -> Message:
    if not isinstance(item, Mapping):
        raise ChatError(f"{field} must be an object, got {item!r:.80}", field)
    role, calls = item.get("role"), item.get("tool_calls")
    if not isinstance(role, str):
        raise ChatError(f"{field}.role must be a text, got {role!r:.80}", field)
    if calls and not isinstance(calls, list):
        raise ChatError(f"{field}.tool_calls must be a list", f"{field}.tool_calls")
    if "content" not in item and not (role == "assistant" and calls):
        raise ChatError(f"{field}.content is required", f"{field}.content")
    message: Message = {"role": role, "content": _content(item.get("content"), f"{field}.content")}
    for name in ("reasoning_content", "name", "tool_call_id"):
        if item.get(name) and isinstance(item[name], str):
            message[name] = item[name]
    if calls:
        message["tool_calls"] = [
            _call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return message


def _content(content: Any, field: str) -> str | list[dict[str, str]]:
    if isinstance(content, list):
        return [{"type": "text", "text": text} for text in _texts(content, field)] or ""
    return text_of(content, field)


def _call(item: Any, field: str) -> dict[str, Any]:
    """Return a call whose arguments are a text."""
    function = item.get("function") if isinstance(item, dict) else None
    custom = item.get("custom") if isinstance(item, dict) else None
    if isinstance(custom, dict) and isinstance(custom.get("input"), str):
        function = {"name": custom.get("name"), "arguments": {INPUT: custom["input"]}}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ChatError(f"{field} must have a function with a name", field)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = {} if arguments is None else arguments
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    named = {"name": function["name"], "arguments": arguments or "{}"}
    call: dict[str, Any] = {"type": "function", "function": named}
    return {**call, "id": item["id"]} if isinstance(item.get("id"), str) else call


def _instructions(tools: Tools) -> str:
    definitions = (tool.definition for tool in tools.tools)
    described = (json.dumps(one.get("function", one)) for one in definitions)
    return INSTRUCTIONS.format(tools="\n".join(described))


def _written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return earlier calls as text, for models whose template does not know them."""
    texts = []
    for call in calls:
        function = call.get("function", {})
        arguments = function.get("arguments", {})
        body = json.dumps({"name": function.get("name"), "arguments": arguments})
        texts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(texts)
