"""GET /metrics: the engine's counters for Prometheus, read on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ngramspec.server.errors import not_supported
from ngramspec.server.metrics.collectors import EngineCollector, RecorderCollector, TrafficCollector
from ngramspec.server.service import Service, routes

OPENMETRICS = "application/openmetrics-text"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"


def metrics_registry(service: Service) -> CollectorRegistry:
    registry, served = CollectorRegistry(auto_describe=False), service.served
    registry.register(EngineCollector(served.engine, served.name))
    registry.register(TrafficCollector(service.bridge.traffic))
    if served.recorder is not None:
        registry.register(RecorderCollector(served.recorder))
    ProcessCollector(registry=registry)
    return registry


def metrics_routes(service: Service) -> list[Route]:
    """Return the route of GET /metrics; clients that accept OpenMetrics get that format."""
    registry = metrics_registry(service)

    async def metrics(request: Request) -> Response:
        if not service.settings.exposes_metrics:
            raise not_supported(
                "This server does not support metrics endpoint. Start it with `--metrics`"
            )
        if _accepts_openmetrics(request.headers.get("accept", "")):
            encode, media_type = _openmetrics, OPENMETRICS_TYPE
        else:
            encode, media_type = generate_latest, TEXT_TYPE
        body = await asyncio.to_thread(encode, registry)  # it takes locks of the engine
        started = str(service.served.created)
        return Response(
            body, headers={"content-type": media_type, "process-start-time-unix": started}
        )

    return routes(metrics, "/metrics")


def _accepts_openmetrics(accept: str) -> bool:
    for item in accept.split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        versions = [p for p in parameters if p.startswith("version=")]
        if kind == OPENMETRICS and (not versions or versions[0].startswith("version=1.")):
            return True
    return False


def _openmetrics(registry: CollectorRegistry) -> bytes:
    """Return the metrics as OpenMetrics, without escaping names.

    By default prometheus_client (0.22 to 0.26) escapes the colons of samples but not those of their
    metadata. All of our names are legal without escaping.
    """
    encode: Callable[..., bytes] = openmetrics.generate_latest
    if hasattr(openmetrics, "ALLOWUTF8"):
        return encode(registry, escaping=openmetrics.ALLOWUTF8)
    return encode(registry)
