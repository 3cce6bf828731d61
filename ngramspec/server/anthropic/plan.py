"""MessagePlan: what a request for a message asks for, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ngramspec.server.anthropic.bodies import MessagesBody
from ngramspec.server.anthropic.messages import messages_of
from ngramspec.server.anthropic.tools import chat_choice, chat_tools
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.plan import ChatPlan, count_tokens, plan_conversation
from ngramspec.server.errors import bad_request
from ngramspec.server.incoming import Incoming
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import parse

THINKING = ("enabled", "adaptive", "disabled", "between_tools")


@dataclass(frozen=True)
class MessagePlan(ChatPlan):
    """A message as an engine request, and the shape of the answer."""

    stops: frozenset[str]  # stop texts that the client has asked for


def plan_message(incoming: Incoming) -> MessagePlan:
    """Read the body of a request for a message.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(incoming.raw, MessagesBody)
    chat = _conversation(body, incoming.served)
    if body.stop_sequences:
        body.stop = body.stop_sequences
    kind = partial(MessagePlan, stops=frozenset(body.stop_sequences or ()))
    return plan_conversation(kind, body, chat, incoming)


def input_tokens(incoming: Incoming) -> dict[str, Any]:
    """Return how many tokens the messages of a request have.

    Raises:
        ApiError, InputError: Its prompt cannot be made.
    """
    body, served = parse(incoming.raw, MessagesBody), incoming.served
    return {"input_tokens": count_tokens(body, _conversation(body, served), served)}


def _conversation(body: MessagesBody, served: ServedModel) -> Conversation:
    choice = body.tool_choice
    one = choice is not None and choice.disable_parallel_tool_use
    return Conversation(
        messages=messages_of(body.messages, body.system, served.takes_late_system),
        tools=chat_tools(body.tools or ()) or None,
        tool_choice=chat_choice(choice),
        parallel_tool_calls=False if one else None,
        chat_template_kwargs=_variables(body),
        reasoning_effort=body.effort,
    )


def _variables(body: MessagesBody) -> dict[str, Any] | None:
    """Return the variables of the template; where thinking is disabled, make the prompt end it."""
    if body.thinking is None:
        return body.chat_template_kwargs
    kind = body.thinking.type
    if kind not in THINKING:
        words = f"thinking.type must be one of {', '.join(THINKING)}, got {kind!r:.80}"
        raise bad_request(words, "thinking")
    if kind == "disabled":
        body.reasoning_budget_tokens = 0
        return body.chat_template_kwargs
    if body.thinking.budget_tokens is not None:
        body.thinking_budget_tokens = body.thinking.budget_tokens
    return {"enable_thinking": True, **(body.chat_template_kwargs or {})}
