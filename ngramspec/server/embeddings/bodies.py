"""Bodies of the routes for embeddings."""

from __future__ import annotations

from typing import Annotated, Any

from ngramspec.server.ollama.bodies import NamedBody
from ngramspec.server.request.bodies import Body, Integer, at_most

MAX_TEXTS = 2048  # as in OpenAI's API


class EmbeddingsBody(Body):
    """POST /v1/embeddings, /embeddings and /embedding."""

    model: str | None = None
    input: Any = None
    content: Any = None  # llama-server's own name for it
    encoding_format: str | None = None
    dimensions: Integer | None = None
    embd_normalize: Integer | None = None


class EmbedBody(NamedBody):
    """POST /api/embed."""

    input: Annotated[str | list[str] | None, at_most(MAX_TEXTS)] = None
    truncate: bool | None = None
    dimensions: Integer | None = None


class OldEmbedBody(NamedBody):
    """POST /api/embeddings."""

    prompt: str | None = None
