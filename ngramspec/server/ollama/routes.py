"""Ollama's routes: generate, chat, and what is told about the served model."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.server.errors import not_supported
from ngramspec.server.ollama.bodies import ShowBody
from ngramspec.server.ollama.events import OllamaEvents, ollama_json
from ngramspec.server.ollama.info import running, show, tags
from ngramspec.server.ollama.plan import plan_chatting, plan_generate
from ngramspec.server.request.bodies import parse
from ngramspec.server.service import json_response, service_of

API_VERSION = "0.12.6"  # Ollama's version whose API this is; clients ask for a least one
router = APIRouter()


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    """Continue a prompt."""
    return await service_of(request).answer(request, plan_generate, OllamaEvents, ollama_json)


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    """Answer a chat."""
    return await service_of(request).answer(request, plan_chatting, OllamaEvents, ollama_json)


@router.api_route("/api/tags", methods=["GET", "HEAD"])
async def list_tags(request: Request) -> Response:
    """List the models that can be used."""
    return json_response(tags(service_of(request).served))


@router.get("/api/ps")
async def list_running(request: Request) -> Response:
    """List the models that are loaded."""
    return json_response(running(service_of(request).served))


@router.post("/api/show")
async def show_model(request: Request) -> Response:
    """Describe the model."""
    service = service_of(request)
    served = service.served
    parse(await service.read(request), ShowBody).named(served)
    return json_response(await asyncio.to_thread(show, served))


@router.api_route("/api/version", methods=["GET", "HEAD"])
async def version() -> Response:
    """Tell which version of Ollama's API this is."""
    return json_response({"version": API_VERSION, "ngramspec": __version__})


@router.post("/api/pull")
@router.post("/api/push")
@router.post("/api/create")
@router.post("/api/copy")
@router.delete("/api/delete")
@router.post("/api/blobs/{digest}")
@router.head("/api/blobs/{digest}")
async def change_models() -> Response:
    """Refuse: models are managed by Ollama itself."""
    raise not_supported(
        "this server does not manage models: use ollama itself, then ngramspec serve --model NAME"
    )


@router.post("/api/embed")
@router.post("/api/embeddings")
async def embed() -> Response:
    """Refuse: there are no embeddings."""
    raise not_supported("this server does not support embeddings")
