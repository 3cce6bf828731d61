"""The server's state: health and properties."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.engine.request import Speculation
from ngramspec.server.errors import ApiError, not_supported
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.native import sampling_settings
from ngramspec.server.service import Service, json_response, posts, routes, service_of


async def health(request: Request) -> Response:
    """Return "ok", or 503 with the reason if the engine has failed."""
    trouble = service_of(request).bridge.watch.trouble
    if trouble:
        raise ApiError(503, trouble, code="engine_failed")
    return json_response({"status": "ok"})


async def props(request: Request) -> Response:
    return json_response(_props(service_of(request)))


async def change_props(request: Request) -> Response:
    """Accept the request and change nothing, like llama-server."""
    if not service_of(request).settings.props:
        raise not_supported(
            "This server does not support changing global properties. Start it with `--props`"
        )
    return json_response({"success": True})


def _props(service: Service) -> dict[str, Any]:
    served, settings = service.served, service.settings
    model, engine = served.model, served.engine
    params = {
        **sampling_settings(served.sampling),
        "seed": -1 if served.sampling.seed is None else served.sampling.seed,
        "n_predict": served.max_tokens,
        "max_tokens": served.max_tokens,
        "n_keep": served.num_keep,
        "stop": list(served.stop),
        "speculative.types": ",".join(engine.types_of(Speculation())) or "none",
    }
    return {
        "default_generation_settings": {"params": params, "n_ctx": engine.context_size},
        "total_slots": engine.num_slots,
        "model_alias": served.name,
        "model_ftype": model.file_type_name,
        "model_path": str(model.path),
        "memory": None if served.memory is None else asdict(served.memory),
        "speculative": served.drafting.as_json(),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": settings.exposes_slots,
        "endpoint_props": settings.props,
        "endpoint_metrics": settings.exposes_metrics,
        "endpoint_live": settings.page and settings.exposes_live,
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
    *posts(change_props, "/props"),
]
