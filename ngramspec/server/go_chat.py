"""Chats in a model's own Go template, and the conversation that comes before every other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ngramspec.errors import FormatError, InputError
from ngramspec.ollama.chat_template import ChatTemplate, Think
from ngramspec.ollama.go_limits import Limits
from ngramspec.server.messages import Message, messages_of

LEVELS = ("low", "medium", "high")


def parsed_template(text: str) -> ChatTemplate:
    """Return a template.

    Raises:
        InputError: It is not Go's.
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
        variables: Those of Jinja templates; enable_thinking and reasoning_effort are looked at.

    Raises:
        InputError: The template is not Go's, or does not fit the data.
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
    """Return messages with a model's own ones before them, behind the system message."""
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
    for ours, theirs in (("reasoning_content", "thinking"), ("name", "tool_name")):
        if ours in made:
            made[theirs] = made.pop(ours)
    return made
