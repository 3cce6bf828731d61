"""ResponsePlan: what a request for a response asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.plan import ChatPlan, count_tokens, plan_conversation
from ngramspec.server.incoming import Incoming
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import parse
from ngramspec.server.responses.bodies import ResponsesBody, check_stateless
from ngramspec.server.responses.input import messages_of
from ngramspec.server.responses.tools import ResponseTools, chat_choice, response_tools

MAX_ECHO = 1 << 20  # bytes of a body up to which its long members are repeated in the response


@dataclass(frozen=True)
class ResponsePlan(ChatPlan):
    """A response as an engine request, and the shape of the answer."""

    tools: ResponseTools
    summarizes: bool  # reasoning is told as a summary
    predicts: bool  # the client has sent a prediction
    echo: Mapping[str, Any]  # members of the request that the response repeats


class InputConversation(Conversation):
    """The conversation that a request's input makes."""

    messages_field = "input"


def plan_response(incoming: Incoming) -> ResponsePlan:
    """Read the body of a request for a response.

    Raises:
        ApiError, GrammarError: It cannot be answered.
        InputError: A value is out of its bounds.
    """
    body = parse(incoming.raw, ResponsesBody)
    check_stateless(body)
    chat, tools = _conversation(body, incoming.served)
    kind = partial(
        ResponsePlan,
        tools=tools,
        summarizes=body.summarizes,
        predicts=body.prediction is not None,
        echo=_echo(body, len(incoming.raw) <= MAX_ECHO),
    )
    return plan_conversation(kind, body, chat, incoming)


def input_tokens(incoming: Incoming) -> dict[str, Any]:
    """Return how many tokens the input of a response has.

    Raises:
        ApiError, InputError: Its prompt cannot be made.
    """
    body, served = parse(incoming.raw, ResponsesBody), incoming.served
    check_stateless(body)
    count = count_tokens(body, _conversation(body, served)[0], served)
    return {"object": "response.input_tokens", "input_tokens": count}


def _conversation(body: ResponsesBody, served: ServedModel) -> tuple[Conversation, ResponseTools]:
    messages = messages_of(body.input, body.instructions or "", served.takes_late_system)
    tools = response_tools(body.tools or ())
    conversation = InputConversation(
        messages=messages,
        tools=list(tools.tools) or None,
        tool_choice=chat_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
    )
    return conversation, tools


def _echo(body: ResponsesBody, small: bool) -> dict[str, Any]:
    """Return the members of a request that the response repeats."""
    extra = body.model_extra or {}
    reasoning = body.reasoning.model_dump(exclude_none=True) if body.reasoning else {}
    text = body.text.model_dump(exclude_none=True) if body.text else {}
    return {
        "background": False,
        "instructions": body.instructions if small else None,
        "max_output_tokens": body.max_output_tokens,
        "metadata": extra.get("metadata") or {} if small else {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "store": False,
        "text": {"format": {"type": "text"}, **text} if small else None,
        "tool_choice": body.tool_choice or "auto" if small else "auto",
        "tools": body.tools or [] if small else [],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
    }
