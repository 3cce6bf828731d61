"""Bodies of OpenAI's routes, with llama-server's further fields."""

from __future__ import annotations

from typing import Any

from ngramspec.server.chat.conversation import AnswerBody, Conversation
from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import Body, Integer, Prompt
from ngramspec.text.structured.guidance import ANY_OBJECT

DEFAULT_TOP = 0  # likeliest tokens with logprobs alone, as in OpenAI's API


class StreamOptions(Body):
    """OpenAI's stream_options."""

    include_usage: bool | None = None


class OpenAIBody(AnswerBody):
    """Fields of both OpenAI routes."""

    model: str | None = None
    n: Integer | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    n_predict: Integer | None = None
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    verbose: bool | None = None
    n_probs: Integer | None = None
    post_sampling_probs: bool | None = None
    prompt_logprobs: Integer | bool | None = None  # vLLM's

    @property
    def of_prompt(self) -> int | None:
        """Return vLLM's prompt_logprobs; false is what clients send by habit, and no 0.

        Raises:
            ApiError: It is below 0, or asked of a stream, whose events have no place for it.
        """
        count = self.prompt_logprobs
        if count is None or count is False:
            return None
        if count < 0:
            raise bad_request(f"prompt_logprobs must be >= 0, got {count}", "prompt_logprobs")
        if self.stream:
            words = "prompt_logprobs cannot be used with stream: use echo and logprobs"
            raise bad_request(words, "prompt_logprobs")
        return int(count)

    @property
    def reports_sampled(self) -> bool:
        """Return what the client says, False if nothing."""
        return bool(self.post_sampling_probs)

    @property
    def num_tokens(self) -> int | None:
        """Return the largest number of tokens, None = the server's default."""
        limits = (self.n_predict, self.max_completion_tokens, self.max_tokens)
        return next((number for number in limits if number is not None), None)

    @property
    def is_strict(self) -> bool:
        """Return whether what a grammar cannot enforce of the schema is to be refused."""
        wrapper = (self.response_format or {}).get("json_schema")
        return isinstance(wrapper, dict) and wrapper.get("strict") is True

    @property
    def answer_schema(self) -> tuple[Any, str]:
        """Return the schema of the response format."""
        response_format = self.response_format
        if response_format is None:
            return self.json_schema, "json_schema"
        kind, schema = response_format.get("type", "text"), self.json_schema
        if kind == "json_object":
            schema = response_format.get("schema", schema)
            schema = ANY_OBJECT if schema is None else schema
        elif kind == "json_schema":
            wrapper = response_format.get("json_schema", response_format)
            schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
            if schema is None:
                words = "response_format.json_schema must have a schema"
                raise bad_request(words, "response_format")
        elif kind not in (None, "text"):
            raise bad_request(
                f"response_format.type must be text, json_object or json_schema, got {kind!r}",
                "response_format",
            )
        return schema, "response_format"

    @property
    def num_choices(self) -> int:
        """Return the number of answers."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Return whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(OpenAIBody):
    """POST /v1/completions."""

    prompt: Prompt
    suffix: str | None = None
    echo: bool | None = None
    best_of: Integer | None = None
    logprobs: Integer | bool | None = None

    @property
    def reported(self) -> tuple[str, int | None]:
        """Return how many of the likeliest tokens to report."""
        if self.n_probs:
            return "n_probs", self.n_probs
        count = None if self.logprobs is None or self.logprobs is False else int(self.logprobs)
        return "logprobs", count


class ChatBody(OpenAIBody, Conversation):
    """POST /v1/chat/completions."""

    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    reasoning_format: str | None = None
    include_reasoning: bool | None = None  # vLLM's; false: reasoning is left out of the answer

    @property
    def reported(self) -> tuple[str, int | None]:
        """Return how many of the likeliest tokens to report; with logprobs alone DEFAULT_TOP."""
        if self.n_probs:
            return "n_probs", self.n_probs
        if self.top_logprobs and not self.logprobs:  # 0 is what clients send by habit
            raise bad_request("top_logprobs requires logprobs to be true", "top_logprobs")
        count = (self.top_logprobs or DEFAULT_TOP) if self.logprobs else None
        return "top_logprobs", count
