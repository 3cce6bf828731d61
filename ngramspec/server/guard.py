"""Guard: what every request passes first: keys, body size, and the last resort for errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngramspec.server.errors import INTERNAL, ApiError
from ngramspec.server.keys import ApiKeys, presented_key
from ngramspec.server.settings import ServerSettings

log = logging.getLogger(__name__)
# Open to everybody, as in llama-server. The page at / asks for the key itself.
PUBLIC = frozenset(("/", "/health", "/v1/health", "/models", "/v1/models", "/favicon.ico"))


class Guard:
    """ASGI middleware. Streams pass it untouched, so it costs nothing per chunk.

    public: Paths that need no key, besides PUBLIC.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        keys: ApiKeys,
        public: Collection[str] = (),
    ) -> None:
        self._app = app
        self._public = PUBLIC | frozenset(public)
        self._max_body = settings.max_body_bytes
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check an HTTP request and hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = _Started(send)
        try:
            self._check(scope)
            await self._app(scope, self._counted(receive), started)
        except ApiError as error:
            await self._fail(error, scope, receive, started)
        except Exception:
            path = scope["path"].encode("unicode_escape").decode()  # it may hold newlines
            log.exception("%s %s failed", scope["method"], path)
            await self._fail(ApiError(500, INTERNAL), scope, receive, started)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["key_id"] = ""
        if self._keys and scope["path"] not in self._public:
            found = self._keys.find(presented_key(headers))
            if found is None:
                raise ApiError(401, "Invalid API Key", code="invalid_api_key")
            state["key_id"] = found
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            raise self._too_large()

    def _counted(self, receive: Receive) -> Receive:
        """Return receive, but with an end to what a body may hold."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._max_body} bytes", code="request_too_large"
        )

    async def _fail(
        self, error: ApiError, scope: Scope, receive: Receive, started: _Started
    ) -> None:
        if not started.yes:
            await error.response(scope["path"])(scope, receive, started)


class _Started:
    """send, and whether the response has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.yes = False

    def __call__(self, message: Message) -> Awaitable[None]:
        self.yes = True
        return self._send(message)
