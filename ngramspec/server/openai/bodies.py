"""Bodies of OpenAI's routes, with llama-server's further fields."""

from __future__ import annotations

from typing import Any

from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.prediction import Prediction
from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import Body, Integer, Prompt, SamplingBody
from ngramspec.text.structured.json_schema import ANY_OBJECT


class StreamOptions(Body):
    """OpenAI's stream_options."""

    include_usage: bool | None = None


class OpenAIBody(SamplingBody):
    """Fields of both OpenAI routes."""

    model: str | None = None
    n: Integer | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    prediction: Prediction | None = None
    n_predict: Integer | None = None
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    verbose: bool | None = None
    n_probs: Integer | None = None
    post_sampling_probs: bool | None = None

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


class ChatBody(OpenAIBody, Conversation):
    """POST /v1/chat/completions."""

    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    reasoning_format: str | None = None
    include_reasoning: bool | None = None  # vLLM's; false: reasoning is left out of the answer


def schema_of(body: OpenAIBody) -> tuple[Any, str]:
    """Return the JSON schema that an answer must follow, None for none, and the field it is from.

    Raises:
        ApiError: The response format is not known, or lacks its schema.
    """
    response_format = body.response_format
    if response_format is None:
        return body.json_schema, "json_schema"
    kind, schema = response_format.get("type", "text"), body.json_schema
    if kind == "json_object":
        schema = response_format.get("schema", schema)
        schema = ANY_OBJECT if schema is None else schema
    elif kind == "json_schema":
        wrapper = response_format.get("json_schema", response_format)
        schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
        if schema is None:
            raise bad_request("response_format.json_schema must have a schema", "response_format")
    elif kind not in (None, "text"):
        raise bad_request(
            f"response_format.type must be text, json_object or json_schema, got {kind!r}",
            "response_format",
        )
    return schema, "response_format"
