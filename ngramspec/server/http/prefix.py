"""Prefix: serves an application below a path."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from ngramspec.server.errors import ApiError
from ngramspec.server.traffic import Traffic


class Prefix:
    """ASGI middleware that takes a prefix off every path and answers other paths with 404.

    traffic: Counts these.
    """

    def __init__(self, app: ASGIApp, prefix: str, traffic: Traffic) -> None:
        self._app = app
        self._prefix = prefix
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on a request, without the prefix."""
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
