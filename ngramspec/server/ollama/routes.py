"""Ollama's routes: generate, chat, embed, and information about the served model.

Of embeddings also what their bodies ask for, and how the answers look.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.arrays import TokenIds, Vectors
from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.embeddings.queue import embeds
from ngramspec.server.embeddings.texts import (
    EUCLIDEAN,
    check_dimensions,
    check_size,
    embedder_of,
    normalized,
    plain,
)
from ngramspec.server.errors import bad_request, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama.bodies import (
    EmbedBody,
    OldEmbedBody,
    PullBody,
    ShowBody,
    listed_name,
    serves,
)
from ngramspec.server.ollama.events import NDJSON, OllamaEvents, ollama_json
from ngramspec.server.ollama.info import running, show, tags
from ngramspec.server.ollama.plan import plan_chat, plan_generate
from ngramspec.server.request.bodies import parse
from ngramspec.server.service import (
    MAX_NAME_BODY,
    generates,
    json_response,
    posts,
    routes,
    service_of,
)

API_VERSION = "0.13.5"  # of Ollama with this API; clients require a minimum, Codex 0.13.4


_NO_CHANGES = (
    "this server does not manage models: use ollama itself, then ngramspec serve --model NAME"
)


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


async def list_tags(request: Request) -> Response:
    return json_response(tags(service_of(request).served))


async def list_running(request: Request) -> Response:
    return json_response(running(service_of(request).served))


async def show_model(request: Request) -> Response:
    service = service_of(request)
    served = service.served
    parse(await service.read(request, MAX_NAME_BODY), ShowBody).named(served)
    return json_response(await asyncio.to_thread(show, served))


async def version(request: Request) -> Response:
    return json_response({"version": API_VERSION, "ngramspec": __version__})


async def pull(request: Request) -> Response:
    """Tell that the served model is here already; clients ask before they use it. Refuse others."""
    service = service_of(request)
    body = parse(await service.read(request, MAX_NAME_BODY), PullBody)
    name = body.model or body.name
    if name and not serves(service.served, name):
        raise not_supported(f"{_NO_CHANGES}; this one serves {listed_name(service.served)}")
    body.named(service.served)
    done = {"status": "success"}
    if body.stream is False:
        return json_response(done)
    lines = ({"status": "pulling manifest"}, done)
    return Response("".join(f"{json.dumps(line)}\n" for line in lines), media_type=NDJSON)


async def change_models(request: Request) -> Response:
    """Refuse: models are managed by Ollama itself."""
    raise not_supported(_NO_CHANGES)


ROUTES = [
    *posts(generates(plan_generate, OllamaEvents, ollama_json), "/api/generate"),
    *posts(generates(plan_chat, OllamaEvents, ollama_json), "/api/chat"),
    *posts(embeds(plan_embed, embed_json), "/api/embed"),
    *posts(embeds(plan_old_embed, old_embed_json), "/api/embeddings"),
    *routes(list_tags, "/api/tags"),
    *routes(list_running, "/api/ps"),
    *posts(show_model, "/api/show"),
    *routes(version, "/api/version"),
    *posts(pull, "/api/pull"),
    *posts(change_models, "/api/push", "/api/create", "/api/copy"),
    *routes(change_models, "/api/blobs/{digest}", methods=["POST", "HEAD"]),
    *routes(change_models, "/api/delete", methods=["DELETE"]),
]
