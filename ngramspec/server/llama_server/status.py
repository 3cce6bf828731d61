"""The server's state: health, properties, slots."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.engine import SlotInfo
from ngramspec.server.errors import ApiError, not_supported
from ngramspec.server.llama_server.events import sampling_settings
from ngramspec.server.model import ServedModel
from ngramspec.server.service import Service, json_response, routes, service_of


async def health(request: Request) -> Response:
    """Return "ok", or 503 with the reason if the engine has failed."""
    trouble = service_of(request).bridge.watch.trouble
    if trouble:
        raise ApiError(503, trouble, code="engine_failed")
    return json_response({"status": "ok"})


async def props(request: Request) -> Response:
    """Return the server's properties."""
    return json_response(_props(service_of(request)))


async def change_props(request: Request) -> Response:
    """Accept the request and change nothing, like llama-server."""
    if not service_of(request).settings.props:
        raise not_supported(
            "This server does not support changing global properties. Start it with `--props`"
        )
    return json_response({"success": True})


async def slots(request: Request) -> Response:
    """Return the state of every slot."""
    service = service_of(request)
    if not service.settings.exposes_slots:
        raise not_supported(
            "This server does not support slots endpoint. Start it with `--slots`, or one API key"
        )
    infos = service.served.engine.slots()
    if request.query_params.get("fail_on_no_slot") and all(i.state != "idle" for i in infos):
        raise ApiError(503, "no slot available", retry_after=service.settings.retry_after)
    return json_response([_slot(info, service.served) for info in infos])


async def change_slot(request: Request) -> Response:
    """Refuse: slots cannot be saved."""
    raise not_supported("This server does not support slots action")


def _slot(info: SlotInfo, served: ServedModel) -> dict[str, Any]:
    return {
        "id": info.id,
        "id_task": info.request_id,
        "n_ctx": served.engine.context_size,
        "speculative": info.speculative,
        "is_processing": info.state != "idle",
        "state": info.state,
        "n_prompt_tokens": info.num_prompt,
        "n_prompt_tokens_cache": info.num_cached,
        "n_prompt_tokens_processed": max(0, min(info.num_past, info.num_prompt) - info.num_cached),
        "n_tokens": info.num_tokens,
        "n_past": info.num_past,
        "draft_n": info.num_draft_tokens,
        "draft_n_accepted": info.num_accepted_tokens,
        "next_token": [
            {
                "has_next_token": info.state != "idle",
                "n_remain": info.num_remaining,
                "n_decoded": info.num_emitted,
            }
        ],
    }


def _props(service: Service) -> dict[str, Any]:
    served, settings = service.served, service.settings
    model, engine = served.model, served.engine
    params = {
        **sampling_settings(served.sampling),
        "seed": -1 if served.sampling.seed is None else served.sampling.seed,
        "n_predict": served.max_tokens,
        "max_tokens": served.max_tokens,
        "stop": list(served.stop),
        "speculative.types": ",".join(engine.drafters.types) or "none",
    }
    return {
        "default_generation_settings": {"params": params, "n_ctx": engine.context_size},
        "total_slots": engine.num_slots,
        "model_alias": served.name,
        "model_ftype": model.file_type_name,
        "model_path": str(model.path),
        "speculative": served.drafting.as_json(),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": settings.exposes_slots,
        "endpoint_props": settings.props,
        "endpoint_metrics": settings.exposes_metrics,
        "chat_template": served.chat_template,
        "chat_template_caps": dict(served.chat_capabilities),
        "bos_token": _text(served, model.bos),
        "eos_token": _text(served, model.eos),
        "build_info": f"ngramspec {__version__}",
        "is_sleeping": False,
    }


def _text(served: ServedModel, token: int) -> str:
    return served.model.piece(token, True).decode("utf-8", "replace") if token >= 0 else ""


ROUTES = [
    *routes(health, "/health", "/v1/health"),
    *routes(props, "/props"),
    *routes(change_props, "/props", methods=["POST"]),
    *routes(slots, "/slots"),
    *routes(change_slot, "/slots/{slot_id}", methods=["POST"]),
]
