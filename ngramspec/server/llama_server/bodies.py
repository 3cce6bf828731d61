"""Bodies of llama-server's own routes."""

from __future__ import annotations

from typing import Annotated, Any

from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.request.bodies import (
    Body,
    Integer,
    Objects,
    Prompt,
    SamplingBody,
    at_most,
)


class NativeBody(SamplingBody):
    """POST /completion and /infill."""

    prompt: Prompt | None = None
    n_predict: Integer | None = None
    max_tokens: Integer | None = None
    n_cmpl: Integer | None = None
    n: Integer | None = None
    n_probs: Integer | None = None
    logprobs: Integer | bool | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], at_most(256)] | None = None
    input_prefix: str | list[Any] | None = None
    input_suffix: str | list[Any] | None = None
    input_extra: Objects | None = None


class TemplateBody(SamplingBody, Conversation):
    """POST /apply-template: a chat that is not answered."""


class SlotBody(Body):
    """POST /slots/{id}?action=save and =restore."""

    filename: str


class TokenizeBody(Body):
    """POST /tokenize."""

    content: str | list[Any] = ""
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[Any] = []  # noqa: RUF012
