"""Routes for embeddings: OpenAI's, and llama-server's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.routing import Route

from ngramspec.arrays import TokenIds, Vectors
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.embeddings.queue import embeds
from ngramspec.server.embeddings.texts import (
    check_dimensions,
    check_norm,
    embedder_of,
    in_base64,
    normalized,
    plain,
    texts_of,
)
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import Body, Integer, parse
from ngramspec.server.service import posts


class EmbeddingsBody(Body):
    """POST /v1/embeddings, /embeddings and /embedding."""

    model: str | None = None
    input: Any = None
    content: Any = None  # llama-server's own name for it
    encoding_format: str | None = None
    dimensions: Integer | None = None
    embd_normalize: Integer | None = None


@dataclass(frozen=True)
class EmbeddingsPlan:
    """Texts and the shape of the answer."""

    texts: Sequence[TokenIds]
    model: str
    openai: bool  # else a list, in which every text has a list of vectors
    base64: bool
    norm: int
    dimensions: int


def plan_openai(incoming: Incoming) -> EmbeddingsPlan:
    """Read the body of POST /v1/embeddings.

    Raises:
        ApiError: It cannot be answered.
    """
    if embedder_of(incoming.served).pooling == "none":
        raise bad_request(
            "the pooling is none, so there is no vector of a whole text: start the server with "
            "--pooling mean or last, or ask /embeddings for vectors of tokens"
        )
    body = parse(incoming.raw, EmbeddingsBody)
    return _plan(body, incoming.served, body.input is not None)


def plan_native(incoming: Incoming) -> EmbeddingsPlan:
    """Read the body of POST /embeddings or /embedding.

    Raises:
        ApiError: It cannot be answered.
    """
    embedder_of(incoming.served)
    return _plan(parse(incoming.raw, EmbeddingsBody), incoming.served, False)


def _plan(body: EmbeddingsBody, served: ServedModel, openai: bool) -> EmbeddingsPlan:
    field = "input" if body.input is not None else "content"
    content = body.input if body.input is not None else body.content
    if content is None:
        raise bad_request("input or content is required", "input")
    if body.encoding_format not in (None, "float", "base64"):
        raise bad_request(
            f"encoding_format must be float or base64, got {body.encoding_format!r:.80}",
            "encoding_format",
        )
    embedder = embedder_of(served)
    kind = body.embd_normalize
    norm = served.embedding_norm if kind is None else check_norm(kind)
    return EmbeddingsPlan(
        texts_of(content, served, field),
        body.model or served.name,
        openai,
        body.encoding_format == "base64",
        -1 if embedder.pooling == "none" else norm,
        check_dimensions(body.dimensions, embedder.size),
    )


def _json(plan: EmbeddingsPlan, vectors: Sequence[Vectors]) -> Any:
    embeddings = [normalized(matrix[:, : plan.dimensions], plan.norm) for matrix in vectors]
    if not plan.openai:
        return [{"index": i, "embedding": plain(matrix)} for i, matrix in enumerate(embeddings)]
    data: list[dict[str, Any]] = []
    for i, matrix in enumerate(embeddings):
        if plan.base64:
            vector: Any = in_base64(matrix[0])
            more = {"encoding_format": "base64"}
        else:
            vector, more = plain(matrix[0]), {}
        data.append({"embedding": vector, "index": i, "object": "embedding", **more})
    num_tokens = sum(map(len, plan.texts))
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"model": plan.model, "object": "list", "usage": usage, "data": data}


ROUTES: list[Route] = [
    *posts(embeds(plan_openai, _json), "/v1/embeddings"),
    *posts(embeds(plan_native, _json), "/embeddings", "/embedding"),
]
