"""The prompt of a chat: messages and tools in the model's own template, Jinja or Go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ngramspec.errors import FormatError, InputError
from ngramspec.gotemplate import Limits
from ngramspec.ollama.chat_template import ChatTemplate, Think
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.messages import (
    Message,
    messages_of,
    without_system,
    without_tools,
)
from ngramspec.server.chat.tools import Tools
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel

# Variables that the server sets itself.
_RESERVED = {"messages", "tools", "template", "add_generation_prompt", "bos_token", "eos_token"}
LEVELS = ("low", "medium", "high")


def chat_text(chat: Conversation, served: ServedModel, tools: Tools) -> str:
    """Return the prompt of a chat, up to a new answer or to the end of a begun answer.

    Raises:
        ApiError: The model has no chat template.
        InputError: The template refuses the messages.
    """
    messages, variables, prefill = _template_input(chat, served, tools)
    given = [dict(tool.given) for tool in tools.tools] if _knows_tools(served) else []
    if served.go_template is not None:
        return go_text(served.go_template, messages, given, variables) + prefill
    if messages[0]["role"] == "system" and not served.takes_system:
        messages = without_system(messages)
    text = served.model.render_chat(
        messages,
        tools=given or None,
        add_generation_prompt=chat.add_generation_prompt is not False,
        template=served.template,
        **variables,
    )
    return text + prefill


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
    given = [_for_go(message) for message in messages]
    parsed, think = parsed_template(template), _think(variables)
    try:
        limits = Limits.for_data(given, tools)
        return parsed.render(given, tools=tools, think=think, limits=limits)
    except FormatError as error:
        raise InputError(str(error)) from error


def with_examples(
    messages: Sequence[Message], examples: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Return messages with a model's example messages inserted after the system message."""
    if not examples:
        return list(messages)
    lead = 1 if messages[0]["role"] == "system" else 0
    return [*messages[:lead], *messages_of(examples), *messages[lead:]]


def _think(variables: Mapping[str, Any]) -> Think:
    effort, wanted = variables.get("reasoning_effort"), variables.get("enable_thinking")
    if effort in LEVELS:
        return cast("Think", effort)
    return wanted if isinstance(wanted, bool) else None


def _for_go(message: Message) -> Message:
    made = dict(message)
    for openai, ollama in (("reasoning_content", "thinking"), ("name", "tool_name")):
        if openai in made:
            made[ollama] = made.pop(openai)
    return made


def _template_input(
    chat: Conversation, served: ServedModel, tools: Tools
) -> tuple[list[Message], dict[str, Any], str]:
    """Return messages and variables for the template, and the begun answer to continue."""
    if not served.chat_template:
        raise not_supported("this model has no chat template: use /v1/completions", "messages")
    messages = messages_of(chat.messages, served.system)
    messages = with_examples(messages, served.recipe.messages)
    prefill = ""
    last = messages[-1]
    if served.prefill and last["role"] == "assistant" and not last.get("tool_calls"):
        if len(messages) == 1:
            raise bad_request("messages must not begin with the assistant's answer", "messages")
        prefill = messages.pop()["content"]
    if not _knows_tools(served):
        messages = without_tools(messages, tools)
    taken = _RESERVED & set(chat.chat_template_kwargs or {})
    if taken:
        raise bad_request(
            f"chat_template_kwargs must not have {', '.join(sorted(taken))}", "chat_template_kwargs"
        )
    variables = {**served.template_variables, **(chat.chat_template_kwargs or {})}
    if chat.reasoning_effort == "none":
        variables["enable_thinking"] = False
    elif chat.reasoning_effort:
        variables["reasoning_effort"] = chat.reasoning_effort
    return messages, variables, prefill


def _knows_tools(served: ServedModel) -> bool:
    return (".Tools" if served.go_template else "tools") in served.chat_template
