"""Ollama's routes: generate, chat, and information about the served model."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.server.errors import not_supported
from ngramspec.server.ollama.bodies import ShowBody
from ngramspec.server.ollama.events import OllamaEvents, ollama_json
from ngramspec.server.ollama.info import running, show, tags
from ngramspec.server.ollama.plan import plan_chat, plan_generate
from ngramspec.server.request.bodies import parse
from ngramspec.server.service import json_response, routes, service_of

API_VERSION = "0.12.6"  # version of Ollama that has this API; clients require a minimum


async def generate(request: Request) -> Response:
    """Continue a prompt."""
    return await service_of(request).generate(request, plan_generate, OllamaEvents, ollama_json)


async def chat(request: Request) -> Response:
    """Answer a chat."""
    return await service_of(request).generate(request, plan_chat, OllamaEvents, ollama_json)


async def list_tags(request: Request) -> Response:
    """List the models that can be used."""
    return json_response(tags(service_of(request).served))


async def list_running(request: Request) -> Response:
    """List the models that are loaded."""
    return json_response(running(service_of(request).served))


async def show_model(request: Request) -> Response:
    """Describe the model."""
    service = service_of(request)
    served = service.served
    parse(await service.read(request), ShowBody).named(served)
    return json_response(await asyncio.to_thread(show, served))


async def version(request: Request) -> Response:
    """Return the version of Ollama's API."""
    return json_response({"version": API_VERSION, "ngramspec": __version__})


async def change_models(request: Request) -> Response:
    """Refuse: models are managed by Ollama itself."""
    raise not_supported(
        "this server does not manage models: use ollama itself, then ngramspec serve --model NAME"
    )


async def embed(request: Request) -> Response:
    """Refuse: there are no embeddings."""
    raise not_supported("this server does not support embeddings")


ROUTES = [
    *routes(generate, "/api/generate", methods=["POST"]),
    *routes(chat, "/api/chat", methods=["POST"]),
    *routes(list_tags, "/api/tags"),
    *routes(list_running, "/api/ps"),
    *routes(show_model, "/api/show", methods=["POST"]),
    *routes(version, "/api/version"),
    *routes(change_models, "/api/pull", "/api/push", "/api/create", "/api/copy", methods=["POST"]),
    *routes(change_models, "/api/blobs/{digest}", methods=["POST", "HEAD"]),
    *routes(change_models, "/api/delete", methods=["DELETE"]),
    *routes(embed, "/api/embed", "/api/embeddings", methods=["POST"]),
]
