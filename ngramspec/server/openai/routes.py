"""OpenAI's routes: models, completions, chat completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ngramspec.server.errors import ApiError
from ngramspec.server.openai.chat_events import ChatEvents, chat_json
from ngramspec.server.openai.chat_plan import plan_chat
from ngramspec.server.openai.completion_events import CompletionEvents, completion_json
from ngramspec.server.openai.completion_plan import plan_completion
from ngramspec.server.served import Served
from ngramspec.server.service import json_response, service_of

router = APIRouter()


@router.get("/v1/models")
@router.get("/models")
async def models(request: Request) -> Response:
    """List the model, as OpenAI and llama-server do."""
    served = service_of(request).served
    return json_response({"object": "list", "data": [model_info(served)]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """Describe the model."""
    served = service_of(request).served
    if name not in served.ids:
        raise ApiError(404, f"The model {name!r} does not exist", code="model_not_found")
    return json_response(model_info(served))


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue texts."""
    service = service_of(request)
    return await service.answer(request, plan_completion, CompletionEvents, completion_json)


@router.post("/v1/chat/completions")
@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a chat."""
    return await service_of(request).answer(request, plan_chat, ChatEvents, chat_json)


def model_info(served: Served) -> dict[str, Any]:
    """Return what is told about the model, with llama-server's `meta`."""
    model = served.model
    return {
        "id": served.name,
        "aliases": list(served.aliases),
        "object": "model",
        "created": served.created,
        "owned_by": "ngramspec",
        "meta": {
            "n_vocab": model.vocab_size,
            "n_ctx": served.engine.context_size,
            "n_ctx_train": model.n_ctx_train,
            "n_params": model.num_params,
            "size": model.size_bytes,
            "description": model.description,
        },
    }
