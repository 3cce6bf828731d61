"""The body of Anthropic's Messages API; MessagePlan: what it asks for, ready for the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from ngramspec.engine.request import MAX_STOPS
from ngramspec.server.anthropic.messages import messages_of
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.chat.conversation import AnswerBody, Conversation
from ngramspec.server.chat.plan import ChatPlan, count_tokens, plan_conversation
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Integer, Objects, at_most, parse

log = logging.getLogger(__name__)
CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
THINKING = ("enabled", "adaptive", "disabled", "between_tools")
# Anthropic's levels of effort that OpenAI's models do not have.
EFFORTS = {"xhigh": "high", "max": "high"}


class Thinking(Body):
    """Whether to think before the answer."""

    type: str
    budget_tokens: Integer | None = None


class OutputConfig(Body):
    """How much effort to make, and how the answer is written."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class ToolChoice(Body):
    """Whether tools are to be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesBody(AnswerBody):
    """POST /v1/messages."""

    messages: Objects
    model: str | None = None
    system: str | Objects | None = None
    tools: Annotated[list[dict[str, Any]], at_most(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    max_tokens: Integer | None = None
    stop_sequences: Annotated[list[str], at_most(MAX_STOPS)] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None  # the older place of output_config.format
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def effort(self) -> str | None:
        effort = self.output_config.effort if self.output_config else None
        return None if effort is None else EFFORTS.get(effort, effort)

    @property
    def answer_schema(self) -> tuple[Any, str]:
        field = "output_config.format"
        output_format = self.output_config and self.output_config.format
        if not output_format:
            field, output_format = "output_format", self.output_format
        if not output_format:
            return self.json_schema, "json_schema"
        kind = output_format.get("type")
        if kind != "json_schema":
            raise bad_request(f"{field}.type must be json_schema, got {kind!r:.80}", field)
        if output_format.get("schema") is None:
            raise bad_request(f"{field} must have a schema", field)
        return output_format["schema"], field

    @property
    def num_tokens(self) -> int | None:
        return self.max_tokens


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


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that the client runs and describes.

    Those that Anthropic runs or describes itself (web_search_20250305, ...) are left out with a
    line in the log.

    Raises:
        ApiError: A tool does not have its shape.
    """
    functions: list[dict[str, Any]] = []
    left_out: set[str] = set()
    for index, tool in enumerate(tools):
        kind, schema, place = tool.get("type"), tool.get("input_schema"), f"tools[{index}]"
        if kind not in (None, "custom") and schema is None:
            left_out.add(f"{kind!s:.80}")
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{place} must have a name", place)
        if not isinstance(schema, dict):
            raise bad_request(f"{place}.input_schema must be a JSON schema", place)
        function: dict[str, Any] = {"name": name, "parameters": schema}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        if tool.get("strict") is True:
            function["strict"] = True
        functions.append({"type": "function", "function": function})
    if left_out:
        log.warning("left out tools that only Anthropic knows: %.200a", ", ".join(left_out))
    return functions


def chat_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    """Return the choice among tools.

    Raises:
        ApiError: It is not one of Anthropic's.
    """
    if choice is None:
        return None
    if choice.type not in CHOICES:
        words = f"tool_choice.type must be one of {', '.join(CHOICES)}, got {choice.type!r:.80}"
        raise bad_request(words, "tool_choice")
    if choice.type != "tool":
        return CHOICES[choice.type]
    if not choice.name:
        raise bad_request("tool_choice must have a name", "tool_choice")
    return {"type": "function", "function": {"name": choice.name}}
