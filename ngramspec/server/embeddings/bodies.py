"""The body of the routes for embeddings."""

from __future__ import annotations

from typing import Any

from ngramspec.server.request.bodies import Body, Integer


class EmbeddingsBody(Body):
    """POST /v1/embeddings, /embeddings and /embedding."""

    model: str | None = None
    input: Any = None
    content: Any = None  # llama-server's own name for it
    encoding_format: str | None = None
    dimensions: Integer | None = None
    embd_normalize: Integer | None = None
