"""Ollama's routes: generate, chat, embed, and information about the served model."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.server.embeddings.queue import embeds
from ngramspec.server.errors import not_supported
from ngramspec.server.ollama.bodies import PullBody, ShowBody, listed_name, serves
from ngramspec.server.ollama.embed import (
    embed_json,
    old_embed_json,
    plan_embed,
    plan_old_embed,
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
