"""The page at /: a chat that marks accepted draft tokens, with live figures of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ngramspec.server.errors import not_supported
from ngramspec.server.service import json_response, routes

if TYPE_CHECKING:
    from ngramspec.engine import Engine
    from ngramspec.server.model import ServedModel
    from ngramspec.server.settings import ServerSettings

# Path -> file and type. No path needs a key: the page asks for the key.
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/stream.js": ("stream.js", "text/javascript; charset=utf-8"),
    "/live.js": ("live.js", "text/javascript; charset=utf-8"),
}
# Only the page's own files, no inline scripts or styles, not in another site's frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes(served: ServedModel, settings: ServerSettings) -> list[Route]:
    """Return the routes of the page and of its figures."""
    if not settings.page:
        return []
    made = []
    for path, (name, media_type) in ASSETS.items():
        content = (files("ngramspec.server") / "page" / name).read_bytes()
        made += routes(_asset(content, media_type), path)

    async def live(request: Request) -> Response:
        if not settings.exposes_slots:
            raise not_supported("Live figures are off. Start the server with `--slots`")
        # in a thread: drafters may hold their locks for a while
        return json_response(await asyncio.to_thread(engine_counters, served.engine))

    return [*made, *routes(live, "/v1/ngramspec/live")]


def engine_counters(engine: Engine) -> dict[str, Any]:
    """Return what the page shows: counters since the start, and the state of slots and pools."""
    stats = engine.stats()
    sources = [source for source in engine.source_stats().values() if source.propose_calls]
    return {
        "time": time.monotonic(),
        "context": engine.context_size,
        "queue": engine.queue_length,
        "steps": stats.num_steps,
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
            }
            for source in sources
        ],
        "pools": list(_pools(engine)),
    }


def _pools(engine: Engine) -> Iterator[dict[str, Any]]:
    suffix, mod = engine.drafters.suffix_pool(), engine.drafters.pool()
    if suffix is not None:
        used, capacity = suffix.num_tokens, suffix.capacity
        yield {"name": "suffix", "unit": "tokens", "used": used, "capacity": capacity}
    if mod is not None:
        used, capacity = mod.num_used, mod.capacity
        yield {"name": "ngram-mod", "unit": "cells", "used": used, "capacity": capacity}


def _asset(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def asset(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "content-type": media_type})

    return asset
