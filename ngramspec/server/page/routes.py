"""The routes of the page at /: its files, and the figures of its live panel; or a line of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ngramspec.server.errors import not_supported
from ngramspec.server.page.assets import Asset, page_assets
from ngramspec.server.service import Service, json_response, routes

if TYPE_CHECKING:
    from ngramspec.engine import Engine

# Path -> file. No path needs a key: the page asks for the key.
ASSETS = page_assets()
RUNNING = "ngramspec is running"


def page_routes(service: Service) -> list[Route]:
    """Return the routes of the page and of its figures; without the page / is a line of text."""
    if not service.settings.page:
        return routes(_running, "/")
    asset_routes = [route for path, one in ASSETS.items() for route in routes(_answer(one), path)]

    async def live(request: Request) -> Response:
        if not service.settings.exposes_live:
            raise not_supported("Live figures are off. Start the server with `--slots`")
        # in a thread: drafters may hold their locks for a while
        return json_response(await asyncio.to_thread(engine_counters, service.served.engine))

    return [*asset_routes, *routes(live, "/v1/ngramspec/live")]


async def _running(request: Request) -> Response:
    """Tell that there is a server: Ollama's command line sends HEAD / before anything else."""
    return Response(RUNNING, media_type="text/plain")


def _answer(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return asset.response(request.headers)

    return answer


def engine_counters(engine: Engine) -> dict[str, Any]:
    """Return what the page shows: counters since the start, and the state of slots and pools."""
    stats = engine.stats()
    saved = engine.seconds_saved()
    sources = [source for source in engine.source_stats().values() if source.propose_calls]
    return {
        "time": time.monotonic(),
        "context": engine.context_size,
        "queue": engine.queue_length,
        "steps": stats.num_slot_steps,  # of all slots: a pass counts once for each
        "prompt_tokens": stats.num_prompt_tokens,
        "emitted_tokens": stats.num_emitted_tokens,
        "draft_tokens": stats.num_draft_tokens,
        "accepted_tokens": stats.num_accepted_tokens,
        "slots": [
            {"id": slot.id, "state": slot.state, "tokens": slot.num_past} for slot in engine.slots()
        ],
        "sources": [
            {
                "name": source.name,
                "drafts": source.num_drafts,
                "draft_tokens": source.num_draft_tokens,
                "accepted_tokens": source.num_accepted_tokens,
                "saved_seconds": saved.get(source.name),
            }
            for source in sources
        ],
        "pools": list(_pools(engine)),
    }


def _pools(engine: Engine) -> Iterator[dict[str, Any]]:
    suffix, mod = engine.drafters.suffix_pool(), engine.drafters.pool()
    recycle = engine.drafters.successor_pool()
    if suffix is not None:
        used, capacity = suffix.num_tokens, suffix.capacity
        yield {"name": "suffix", "unit": "tokens", "used": used, "capacity": capacity}
    if mod is not None:
        used, capacity = mod.num_used, mod.capacity
        yield {"name": "ngram-mod", "unit": "cells", "used": used, "capacity": capacity}
    if recycle is not None:
        used, capacity = recycle.num_entries, recycle.capacity
        yield {"name": "recycle", "unit": "keys", "used": used, "capacity": capacity}
