"""create_app: the ASGI application, put together from routers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from ngramspec._version import __version__
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.errors import ApiError
from ngramspec.server.http.guard import Guard
from ngramspec.server.http.keys import ApiKeys
from ngramspec.server.llama_server import routes as llama_server
from ngramspec.server.llama_server import status
from ngramspec.server.metrics.routes import metrics_router
from ngramspec.server.ollama import routes as ollama
from ngramspec.server.openai import routes as openai
from ngramspec.server.page.routes import ASSETS, page_router
from ngramspec.server.served import Served
from ngramspec.server.service import Service
from ngramspec.server.settings import ServerSettings

MakeRouter = Callable[[Served, ServerSettings], APIRouter]
# A further API adds its router, or what makes one, and its paths that need no key.
ROUTERS: list[APIRouter] = [
    status.router,
    openai.router,
    llama_server.router,
    ollama.router,
]
MADE_ROUTERS: list[MakeRouter] = [metrics_router, page_router]
PUBLIC: list[str] = [*ASSETS]


def create_app(served: Served, settings: ServerSettings | None = None) -> FastAPI:
    """Return the application for a served model.

    The engine must be run by an EngineThread while the application answers requests.
    """
    settings = settings or ServerSettings()
    service = Service(served, settings, Bridge(served.engine, settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.bridge.watching():
            yield

    app = FastAPI(
        title="ngramspec",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    for make in MADE_ROUTERS:
        app.include_router(make(served, settings))
    app.add_exception_handler(HTTPException, _routing_error)
    keys = ApiKeys(settings.api_keys)
    app.add_middleware(Guard, settings=settings, keys=keys, public=tuple(PUBLIC))
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["*"],
        )
    return app


async def _routing_error(request: Request, error: Exception) -> Response:
    """Tell of an unknown path or a wrong method in the API's own shape."""
    known = cast("HTTPException", error)
    path, method = request.url.path, request.method
    words = {404: f"there is no {path}", 405: f"{path} does not take {method}"}
    made = ApiError(known.status_code, words.get(known.status_code, known.detail))
    response = made.response(path)
    for name, value in (known.headers or {}).items():
        response.headers[name] = value
    return response
