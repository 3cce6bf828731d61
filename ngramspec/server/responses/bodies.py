"""The body of OpenAI's Responses API, with the further fields of this server's other routes."""

from __future__ import annotations

from typing import Annotated, Any

from ngramspec.server.chat.conversation import AnswerBody
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.request.bodies import MAX_TOOLS, Body, Integer, Objects, at_most
from ngramspec.text.structured.guidance import ANY_OBJECT

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
        """Return whether what a grammar cannot enforce of the schema is to be refused."""
        return bool(self.text and self.text.format and self.text.format.get("strict") is True)

    @property
    def answer_schema(self) -> tuple[Any, str]:
        """Return the schema of the text's format."""
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
        """Return the largest number of tokens."""
        return self.max_output_tokens

    @property
    def summarizes(self) -> bool:
        """Return whether reasoning is wanted as a summary."""
        options = self.reasoning
        return options is not None and (options.summary or options.generate_summary) is not None

    @property
    def reported(self) -> tuple[str, int | None]:
        """Return how many of the likeliest tokens to report."""
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
