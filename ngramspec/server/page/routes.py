"""The routes of the page at /: its files, and the figures of its live panel; or a line of text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ngramspec.server.errors import not_supported
from ngramspec.server.page.assets import Asset, page_assets
from ngramspec.server.page.figures import engine_counters
from ngramspec.server.service import Service, json_response, routes

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
