"""The body of OpenAI's Responses API; ResponsePlan: what it asks for, ready for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.chat.conversation import AnswerBody, Conversation
from ngramspec.server.chat.plan import ChatPlan, count_tokens, plan_conversation
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Integer, Objects, at_most, parse
from ngramspec.server.responses.input import messages_of
from ngramspec.server.responses.tools import ResponseTools, chat_choice, response_tools
from ngramspec.text.structured.guidance import ANY_OBJECT

MAX_ECHO = 1 << 20  # bytes of a body up to which its long members are repeated in the response
WITH_LOGPROBS = "message.output_text.logprobs"
# What would need answers that are kept, and none are.
KEEPING = ("previous_response_id", "conversation", "background", "prompt")


class Reasoning(Body):
    """How much to reason, and whether to show it as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # the older name of summary


class TextOptions(Body):
    """How the text of the answer is written."""

    format: dict[str, Any] | None = None


class ResponsesBody(AnswerBody):
    """POST /v1/responses."""

    input: str | Objects
    model: str | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], at_most(MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Integer | None = None
    top_logprobs: Integer | None = None
    include: Annotated[list[str], at_most(64)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def is_strict(self) -> bool:
        return bool(self.text and self.text.format and self.text.format.get("strict") is True)

    @property
    def answer_schema(self) -> tuple[Any, str]:
        text_format = self.text.format if self.text else None
        kind = "text" if text_format is None else text_format.get("type", "text")
        if text_format is None or kind == "text":
            return self.json_schema, "json_schema"
        if kind == "json_object":
            return ANY_OBJECT, "text.format"
        if kind != "json_schema":
            words = f"text.format.type must be text, json_object or json_schema, got {kind!r:.80}"
            raise bad_request(words, "text.format")
        if text_format.get("schema") is None:
            raise bad_request("text.format must have a schema", "text.format")
        return text_format["schema"], "text.format"

    @property
    def num_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def summarizes(self) -> bool:
        options = self.reasoning
        return options is not None and (options.summary or options.generate_summary) is not None

    @property
    def reported(self) -> tuple[str, int | None]:
        with_logprobs = bool(self.top_logprobs) or WITH_LOGPROBS in (self.include or ())
        return "top_logprobs", (self.top_logprobs or 0) if with_logprobs else None


def check_stateless(body: ResponsesBody) -> None:
    """Refuse what refers to an earlier response.

    Raises:
        ApiError: It does.
    """
    for name in KEEPING:
        if (body.model_extra or {}).get(name):
            words = f"{name} is not supported: this server keeps no responses, so send all of input"
            raise not_supported(words, name)


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
