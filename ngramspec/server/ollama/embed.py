"""Ollama's embeddings: what its bodies ask for, and how its answers look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ngramspec.arrays import TokenIds, Vectors
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.embeddings.texts import (
    EUCLIDEAN,
    check_dimensions,
    check_size,
    embedder_of,
    normalized,
    plain,
)
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama.bodies import EmbedBody, OldEmbedBody
from ngramspec.server.request.bodies import parse


@dataclass(frozen=True)
class EmbedPlan:
    """Texts and the shape of the answer."""

    texts: Sequence[TokenIds]
    model: str
    dimensions: int
    began: float = field(default_factory=time.perf_counter)


def plan_embed(incoming: Incoming) -> EmbedPlan:
    """Read the body of POST /api/embed.

    Raises:
        ApiError: It cannot be answered.
    """
    served = incoming.served
    body, embedder = parse(incoming.raw, EmbedBody), embedder_of(served)
    name = body.named(served)
    texts = ([body.input] if isinstance(body.input, str) else body.input) if body.input else []
    tokenized = [_tokens(text, served, body.truncate is not False) for text in texts]
    if not all(ids.size for ids in tokenized):
        raise bad_request("input must not hold an empty text", "input")
    check_size(tokenized, embedder, "input")
    return EmbedPlan(tokenized, name, check_dimensions(body.dimensions, embedder.size))


def plan_old_embed(incoming: Incoming) -> EmbedPlan:
    """Read the body of POST /api/embeddings; no prompt has no vector.

    Raises:
        ApiError: It cannot be answered.
    """
    served = incoming.served
    body, embedder = parse(incoming.raw, OldEmbedBody), embedder_of(served)
    name = body.named(served)
    texts = [_tokens(body.prompt, served, True)] if body.prompt else []
    return EmbedPlan(texts, name, embedder.size)


def embed_json(plan: EmbedPlan, vectors: Sequence[Vectors]) -> dict[str, Any]:
    embeddings = [normalized(_whole(matrix)[:, : plan.dimensions], EUCLIDEAN) for matrix in vectors]
    return {
        "model": plan.model,
        "embeddings": [plain(matrix[0]) for matrix in embeddings],
        "total_duration": int((time.perf_counter() - plan.began) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": sum(map(len, plan.texts)),
    }


def old_embed_json(plan: EmbedPlan, vectors: Sequence[Vectors]) -> dict[str, Any]:
    """Return the answer of POST /api/embeddings: the vector as the model makes it."""
    return {"embedding": plain(_whole(vectors[0])[0]) if vectors else []}


def _whole(vectors: Vectors) -> Vectors:
    """Return the vector of a text; without a pooling that of its last token, as Ollama does."""
    return vectors[-1:]


def _tokens(text: str, served: ServedModel, truncate: bool) -> TokenIds:
    ids, most = served.model.tokenize(text), embedder_of(served).most_tokens
    if ids.size > most and not truncate:
        raise bad_request(f"the input length exceeds the context length of {most} tokens", "input")
    return ids[:most]
