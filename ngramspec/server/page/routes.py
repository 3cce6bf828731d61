"""The routes of the page at /: its files, and the figures of its live panel; or a line of text."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ngramspec.server.errors import not_supported
from ngramspec.server.service import Service, json_response, routes

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from ngramspec.engine import Engine

RUNNING = "ngramspec is running"
PAGE = files("ngramspec.server") / "page"
# Files with other endings are not sent.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Only the page's own files, no inline scripts or styles, not in another site's frame. HTML is made
# of text in one place only: by the sanitiser.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # kept, but asked for again with its tag
    "vary": "accept-encoding",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page; it is read when it is first asked for."""

    file: Traversable
    media_type: str

    @cached_property
    def content(self) -> bytes:
        return self.file.read_bytes()

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    @cached_property
    def tag(self) -> str:
        """Return what changes with the content."""
        return hashlib.sha256(self.content).hexdigest()[:20]

    def response(self, asked: Mapping[str, str]) -> Response:
        """Return the answer to a request: 304 where the browser has the file already.

        asked: The request's headers, names in lower case.
        """
        zips = "gzip" in asked.get("accept-encoding", "")
        tag = f'"{self.tag}{"-gzip" if zips else ""}"'
        headers = {**HEADERS, "etag": tag, "content-type": self.media_type}
        etags = asked.get("if-none-match", "")
        if etags.strip() == "*" or tag in [one.strip() for one in etags.split(",")]:
            return Response(status_code=304, headers=headers)
        if zips:
            return Response(self.zipped, headers={**headers, "content-encoding": "gzip"})
        return Response(self.content, headers=headers)


def page_assets() -> dict[str, Asset]:
    """Return the files of the page by their paths: index.html at /, the others below /page/."""
    assets = {f"/page/{path}": asset for path, asset in _assets_in(PAGE)}
    assets["/"] = assets.pop("/page/index.html")
    assets["/favicon.ico"] = assets["/page/favicon.svg"]
    return assets


def _assets_in(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        ending = f".{entry.name.rpartition('.')[2]}"
        if entry.is_dir():
            yield from _assets_in(entry, f"{prefix}{entry.name}/")
        elif ending in TYPES:
            yield f"{prefix}{entry.name}", Asset(entry, TYPES[ending])


# Path -> file. No path needs a key: the page asks for the key.
ASSETS = page_assets()


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
