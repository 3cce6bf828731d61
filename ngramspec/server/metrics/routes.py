"""GET /metrics: the engine's counters for Prometheus, read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from ngramspec.server.errors import not_supported
from ngramspec.server.metrics.collector import EngineCollector

if TYPE_CHECKING:
    from ngramspec.server.served import Served
    from ngramspec.server.settings import ServerSettings

OPENMETRICS = "application/openmetrics-text"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


def metrics_registry(served: Served) -> CollectorRegistry:
    """Return a registry of its own for the metrics of one model and of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(served.engine, served.name))
    ProcessCollector(registry=registry)
    return registry


def metrics_router(served: Served, settings: ServerSettings) -> APIRouter:
    """Return the route of GET /metrics; as OpenMetrics for clients that accept it."""
    router = APIRouter()
    registry = metrics_registry(served)

    @router.get("/metrics")
    def metrics(request: Request) -> Response:  # in a worker thread: the event loop goes on
        if not settings.exposes_metrics:
            raise not_supported(
                "This server does not support metrics endpoint. Start it with `--metrics`"
            )
        if _accepts_openmetrics(request.headers.get("accept", "")):
            return Response(_openmetrics(registry), headers={"content-type": OPENMETRICS_TYPE})
        return Response(generate_latest(registry), headers={"content-type": TEXT_TYPE})

    return router


def _accepts_openmetrics(accept: str) -> bool:
    for item in accept.split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        versions = [p for p in parameters if p.startswith("version=")]
        if kind == OPENMETRICS and (not versions or versions[0].startswith("version=1.")):
            return True
    return False


def _openmetrics(registry: CollectorRegistry) -> bytes:
    """Return the metrics as OpenMetrics, names as they are.

    Left to itself prometheus_client (0.22 to 0.26) escapes the colons of samples but not those of
    their metadata. All of our names are legal without escaping.
    """
    encode: Callable[..., bytes] = openmetrics.generate_latest
    if hasattr(openmetrics, "ALLOWUTF8"):
        return encode(registry, escaping=openmetrics.ALLOWUTF8)
    return encode(registry)
