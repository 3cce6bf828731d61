"""The body of Anthropic's Messages API, with the further fields of this server's other routes."""

from __future__ import annotations

from typing import Annotated, Any

from ngramspec.engine.request import MAX_STOPS
from ngramspec.server.chat.conversation import AnswerBody
from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Integer, Objects, at_most

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
        """Return how hard to think, in OpenAI's words."""
        effort = self.output_config.effort if self.output_config else None
        return None if effort is None else EFFORTS.get(effort, effort)

    @property
    def answer_schema(self) -> tuple[Any, str]:
        """Return the schema of the output's format."""
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
        """Return the largest number of tokens."""
        return self.max_tokens
