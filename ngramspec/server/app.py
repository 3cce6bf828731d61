"""create_app: the ASGI application, put together from routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ngramspec.server.anthropic import routes as anthropic
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.embeddings import routes as embeddings
from ngramspec.server.embeddings.queue import EmbeddingQueue
from ngramspec.server.errors import ApiError
from ngramspec.server.http.connections import Traffic
from ngramspec.server.http.guard import Guard
from ngramspec.server.http.origins import PAGES_HERE, THIS_MACHINE
from ngramspec.server.llama_server import routes as llama_server
from ngramspec.server.llama_server import slots, status
from ngramspec.server.metrics.routes import metrics_routes
from ngramspec.server.model import ServedModel
from ngramspec.server.ollama import routes as ollama
from ngramspec.server.openai import routes as openai
from ngramspec.server.page.routes import ASSETS, page_routes
from ngramspec.server.responses import routes as responses
from ngramspec.server.service import Service
from ngramspec.server.settings import ServerSettings

MakeRoutes = Callable[[Service], Sequence[Route]]
# A further API adds its routes, or a function that makes them, and its paths that need no key.
ROUTES: list[Route] = [
    *status.ROUTES,
    *slots.ROUTES,
    *openai.ROUTES,
    *responses.ROUTES,
    *anthropic.ROUTES,
    *llama_server.ROUTES,
    *ollama.ROUTES,
    *embeddings.ROUTES,
]
MADE_ROUTES: list[MakeRoutes] = [metrics_routes, page_routes]
PUBLIC: list[str] = [*ASSETS]


class Application(Starlette):
    """Starlette without its own middleware, which every message of a stream would pass.

    Guard turns errors into responses instead.
    """

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self.router
        for make, args, kwargs in reversed(self.user_middleware):
            app = make(app, *args, **kwargs)
        return app


class Cors(CORSMiddleware):
    """Answers a page that may not ask as llama-server does: 200 without what would permit it."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to a browser that asks whether a page may send a request."""
        response = super().preflight_response(request_headers)
        response.status_code = 200
        return response


class Prefix:
    """ASGI middleware that takes a prefix off every path and answers other paths with 404.

    traffic: Counts these.
    """

    def __init__(self, app: ASGIApp, prefix: str, traffic: Traffic) -> None:
        self._app = app
        self._prefix = prefix
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        rest = path.removeprefix(self._prefix)
        if rest == path or not rest.startswith("/"):
            error = ApiError(404, f"there is no {path}: paths begin with {self._prefix}/")
            self._traffic.count_error(error)
            await error.response(path)(scope, receive, send)
            return
        await self._app({**scope, "path": rest, "raw_path": rest.encode()}, receive, send)


def create_app(served: ServedModel, settings: ServerSettings | None = None) -> Starlette:
    """Return the application for a served model.

    An EngineThread must run the engine while the application answers requests.
    """
    settings = settings or ServerSettings()
    ends = {} if served.recorder is None else {"on_end": served.recorder.offer}
    service = Service(served, settings, Bridge(served.engine, settings, **ends))
    queue = EmbeddingQueue(served.embedder) if served.embedder is not None else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with service.bridge.watching():
            yield
        if queue is not None:
            await asyncio.to_thread(queue.close)

    service_routes = [route for make in MADE_ROUTES for route in make(service)]
    app = Application(routes=[*ROUTES, *service_routes], lifespan=lifespan)
    app.router.redirect_slashes = not settings.api_prefix  # to a path without the prefix
    app.state.service = service
    app.state.embeddings = queue
    keys, traffic = service.keys, service.bridge.traffic
    app.add_middleware(Guard, settings=settings, keys=keys, traffic=traffic, public=tuple(PUBLIC))
    if settings.cors_origins:
        app.add_middleware(
            Cors,
            allow_origins=[one for one in settings.cors_origins if one != THIS_MACHINE],
            allow_origin_regex=PAGES_HERE if THIS_MACHINE in settings.cors_origins else None,
            allow_credentials=True,  # some pages send cookies to every server; this one reads none
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["*"],
        )
    if settings.api_prefix:
        # outermost: the others see paths without it
        app.add_middleware(Prefix, prefix=settings.api_prefix, traffic=traffic)
    return app
