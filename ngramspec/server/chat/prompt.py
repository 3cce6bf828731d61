"""The prompt of a chat: messages and tools in the model's own template, Jinja or Go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ngramspec.errors import FormatError, InputError
from ngramspec.models.ollama.chat_template import ChatTemplate, Think
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.text.chat.messages import (
    SYSTEM,
    Message,
    for_template,
    messages_of,
    text_of,
    with_objects,
)
from ngramspec.text.chat.tools import Tool, Tools, tools_of
from ngramspec.text.limits import RenderLimits

# Variables that the server sets itself.
_RESERVED = {"messages", "tools", "template", "add_generation_prompt", "continue_final_message",
             "bos_token", "eos_token"}  # fmt: skip
GO_ROLES = {"developer": "system", "function": "tool"}
LEVELS = ("low", "medium", "high")


def chat_text(chat: Conversation, served: ServedModel, tools: Tools) -> str:
    """Return the prompt of a chat, up to a new answer or to the end of a begun answer.

    Raises:
        ApiError: The model has no chat template, or the answer cannot be continued.
        ChatError: A message does not have OpenAI's shape.
        InputError: The template refuses the messages.
    """
    messages = _messages(chat, served)
    continued = _continued(chat, messages, served)
    listed = _all_tools(chat, tools) if _knows_tools(served) else None
    messages, template_tools = for_template(messages, tools, listed, _knows_calls(served))
    variables = _variables(chat, served)
    if served.go_template is None:
        return served.model.render_chat(
            messages,
            tools=template_tools or None,
            add_generation_prompt=not continued and chat.add_generation_prompt is not False,
            template=served.template,
            continue_final_message=continued,
            **variables,
        )
    begun = messages.pop() if continued else {"content": ""}
    if not messages:
        field = chat.messages_field
        raise bad_request(f"{field} must not begin with the assistant's answer", field)
    text = go_text(served.go_template, messages, template_tools, variables)
    return text + text_of(begun["content"], chat.messages_field)


def continues_reasoning(chat: Conversation, prompt: str) -> bool:
    """Return whether a prompt ends within the reasoning of a begun answer."""
    last = chat.messages[-1]
    thought = last.get("reasoning_content")
    only = chat.continue_final_message == "reasoning_content" or not last.get("content")
    return only and isinstance(thought, str) and bool(thought) and prompt.endswith(thought)


def parsed_template(text: str) -> ChatTemplate:
    """Return a parsed Go template.

    Raises:
        InputError: It is not a valid Go template.
    """
    try:
        return ChatTemplate.parse(text)
    except FormatError as error:
        raise InputError(str(error)) from error


def go_text(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> str:
    """Return the prompt of a conversation.

    Args:
        template: In Go's language.
        messages: As messages_of returns them.
        tools: As clients write them.
        variables: Those of Jinja templates; only enable_thinking and reasoning_effort are used.

    Raises:
        InputError: It is not a valid Go template, or does not fit the data.
    """
    go_messages = [_for_go(message) for message in messages]
    parsed, think = parsed_template(template), _think(variables)
    try:
        limits = RenderLimits.for_data(go_messages, tools)
        return parsed.render(go_messages, tools=tools, think=think, limits=limits)
    except FormatError as error:
        raise InputError(str(error)) from error


def with_examples(
    messages: Sequence[Message], examples: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Return messages with a model's example messages inserted after the system message."""
    if not examples:
        return list(messages)
    lead = 1 if messages[0]["role"] in SYSTEM else 0
    return [*messages[:lead], *messages_of(examples), *messages[lead:]]


def _think(variables: Mapping[str, Any]) -> Think:
    effort, enabled = variables.get("reasoning_effort"), variables.get("enable_thinking")
    if effort in LEVELS:
        return cast("Think", effort)
    return enabled if isinstance(enabled, bool) else None


def _for_go(message: Message) -> Message:
    go_message = with_objects(message)
    go_message["role"] = GO_ROLES.get(go_message["role"], go_message["role"])
    go_message["content"] = text_of(go_message["content"], "content")
    for openai, ollama in (("reasoning_content", "thinking"), ("name", "tool_name")):
        if openai in go_message:
            go_message[ollama] = go_message.pop(openai)
    return go_message


def _messages(chat: Conversation, served: ServedModel) -> list[Message]:
    """Return the messages for the template, those of the served model among them."""
    field = chat.messages_field
    if not served.chat_template:
        raise not_supported("this model has no chat template: use /v1/completions", field)
    messages = messages_of(chat.messages, served.system, field)
    return with_examples(messages, served.recipe.messages)


def _continued(chat: Conversation, messages: Sequence[Message], served: ServedModel) -> bool | str:
    """Return whether the last message is to be continued, or which part of it."""
    asked, field = chat.continue_final_message, chat.messages_field
    continued: bool | str = asked if asked in (True, "content", "reasoning_content") else False
    last = messages[-1]
    if continued and chat.add_generation_prompt is not False:
        raise bad_request(
            "add_generation_prompt must be false with continue_final_message",
            "continue_final_message",
        )
    if not continued and last["role"] == "assistant" and served.prefill:
        if len(messages) > 1 and messages[-2]["role"] == "assistant":
            words = f"{field} must not end with two messages of the assistant: join them"
            raise bad_request(words, field)
        continued = True
    if continued and last["role"] == "assistant" and last.get("tool_calls"):
        words = f"{field} must not end with calls of tools: their results must follow"
        raise bad_request(words, field)
    return continued


def _variables(chat: Conversation, served: ServedModel) -> dict[str, Any]:
    kwargs = chat.chat_template_kwargs or {}
    if taken := _RESERVED & set(kwargs):
        raise bad_request(
            f"chat_template_kwargs must not have {', '.join(sorted(taken))}", "chat_template_kwargs"
        )
    variables = {**served.template_variables, **kwargs}
    if isinstance(variables.get("enable_thinking"), str):
        raise bad_request(
            "enable_thinking must be true or false, got a text", "chat_template_kwargs"
        )
    if chat.reasoning_effort == "none":
        variables.pop("reasoning_effort", None)
        variables["enable_thinking"] = False
    elif chat.reasoning_effort:
        variables["reasoning_effort"] = chat.reasoning_effort
    return variables


def _all_tools(chat: Conversation, tools: Tools) -> Sequence[Tool]:
    """Return the tools that the prompt describes: all that are given, whichever may be called."""
    if not chat.tools or len(chat.tools) == len(tools.tools):
        return tools.tools
    return tools_of(chat.tools).tools


def _knows_tools(served: ServedModel) -> bool:
    if served.go_template is not None:
        return ".Tools" in served.go_template
    return served.chat_capabilities.get("supports_tools", False)


def _knows_calls(served: ServedModel) -> bool:
    return served.chat_capabilities.get("supports_tool_calls", False)
