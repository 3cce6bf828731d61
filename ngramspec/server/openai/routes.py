"""OpenAI's routes: models, completions, chat completions."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ngramspec.server.bridge.intake import Incoming
from ngramspec.server.chat.plan import count_tokens
from ngramspec.server.errors import ApiError
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.chat_events import ChatEvents, chat_json
from ngramspec.server.openai.completion_events import CompletionEvents, completion_json
from ngramspec.server.openai.plan import ChatBody, plan_chat, plan_completion
from ngramspec.server.request.bodies import parse
from ngramspec.server.service import computes, generates, json_response, posts, routes, service_of


async def models(request: Request) -> Response:
    """List the model, as OpenAI, llama-server and Anthropic do."""
    served = service_of(request).served
    page = {"has_more": False, "first_id": served.name, "last_id": served.name}
    return json_response({"object": "list", "data": [model_info(served)], **page})


async def model(request: Request) -> Response:
    name = request.path_params["name"]
    served = service_of(request).served
    if name not in served.ids:
        raise ApiError(404, f"The model {name!r} does not exist", code="model_not_found")
    return json_response(model_info(served))


def model_info(served: ServedModel) -> dict[str, Any]:
    """Return OpenAI's object for the model, with llama-server's `meta` and Anthropic's members."""
    model = served.model
    return {
        "id": served.name,
        "aliases": list(served.ids),
        "tags": sorted(served.tags),
        "object": "model",
        "created": served.created,
        "owned_by": "ngramspec",
        "type": "model",
        "display_name": served.name,
        "created_at": datetime.fromtimestamp(served.created, timezone.utc).isoformat(),
        "max_input_tokens": served.engine.context_size,
        "meta": {
            "n_vocab": model.vocab_size,
            "n_ctx": served.engine.context_size,
            "n_ctx_train": model.n_ctx_train,
            "n_params": model.num_params,
            "size": model.size_bytes,
            "ftype": model.file_type_name,
            "description": model.description,
        },
    }


def _input_tokens(incoming: Incoming) -> dict[str, Any]:
    body = parse(incoming.raw, ChatBody)
    count = count_tokens(body, body, incoming.served)
    return {"object": "response.input_tokens", "input_tokens": count}


ROUTES = [
    *routes(models, "/v1/models", "/models"),
    *routes(model, "/v1/models/{name:path}"),
    *posts(generates(plan_completion, CompletionEvents, completion_json), "/v1/completions"),
    *posts(
        generates(plan_chat, ChatEvents, chat_json), "/v1/chat/completions", "/chat/completions"
    ),
    *posts(
        computes(_input_tokens),
        "/v1/chat/completions/input_tokens",
        "/chat/completions/input_tokens",
    ),
]
