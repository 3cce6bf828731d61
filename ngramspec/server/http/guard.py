"""Guard: checks origin, key and body size of every request; turns exceptions into responses.

ApiKeys: the keys that are accepted, kept and compared as hashes.
"""

from __future__ import annotations

import hmac
import logging
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngramspec.server.errors import INTERNAL, REQUEST_ID_HEADER, ApiError
from ngramspec.server.http.connections import Traffic
from ngramspec.server.http.origins import Origins
from ngramspec.server.settings import ServerSettings

log = logging.getLogger(__name__)
# Open to everybody, as in llama-server. The page at / asks for the key itself.
PUBLIC = frozenset(("/", "/health", "/v1/health", "/favicon.ico"))
SMALL_BODY = 256 << 10  # bytes that every request can hold, whatever others hold
ID_LENGTH = 16  # hexadecimal digits
# A client's or proxy's own id that the log and the answer repeat; any other text is not looked at.
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class ApiKeys:
    """The valid keys; without any, all requests are allowed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """Let these keys in from now on, and no others."""
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, presented: str) -> str | None:
        """Return the id of a valid key, None for any other text.

        Compares with all keys, in a time that does not depend on how much of a key is right.
        """
        digest = _digest(presented)
        valid = False
        for key_digest in self._digests:
            valid |= hmac.compare_digest(key_digest, digest)
        return digest.hex()[:ID_LENGTH] if valid else None


def presented_key(headers: Mapping[str, str]) -> str:
    """Return the key of a request: `Authorization: Bearer KEY` or `X-Api-Key: KEY`."""
    value = headers.get("authorization", "") or headers.get("x-api-key", "")
    value = value.encode("latin-1", "replace").decode("utf-8", "replace")  # ASGI decodes as latin-1
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value.strip()


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


class Guard:
    """ASGI middleware. It does not wrap `send`, so it costs nothing per chunk.

    Exceptions become responses here: nothing below raises after it has sent a part of a response.

    traffic: Counts the errors.
    public: Paths that need no key, in addition to PUBLIC.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        keys: ApiKeys,
        traffic: Traffic,
        public: Collection[str] = (),
    ) -> None:
        self._app = app
        self._public = PUBLIC | frozenset(public)
        self._max_body = settings.max_body_bytes
        self._keys = keys
        self._traffic = traffic
        self._origins = Origins(settings)
        self._room = BodyRoom(max(settings.max_held_bytes, settings.max_body_bytes))
        self._retry_after = settings.retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held = HeldBody(self._room)
        scope.setdefault("state", {}).update(key_id="", request_id="")
        try:
            self._check(scope)
            await self._app(scope, self._counted(receive, held), send)
        except ApiError as error:
            await self._refuse(error, scope, receive, send)
        except HTTPException as error:
            await self._refuse(_routing_error(error, scope), scope, receive, send, error.headers)
        except Exception:
            state = scope["state"]
            state["request_id"] = state["request_id"] or new_id()
            # the path may hold newlines
            log.exception(
                "request %s: %s %r failed", state["request_id"], scope["method"], scope["path"]
            )
            await self._refuse(ApiError(500, INTERNAL), scope, receive, send)
        finally:
            held.release()

    async def _refuse(
        self,
        error: ApiError,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer a request with an error, and count it."""
        self._traffic.count_error(error)
        response = error.response(scope["path"], scope["state"]["request_id"])
        response.headers.update(headers or {})
        await response(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers, state = Headers(scope=scope), scope["state"]
        state["request_id"] = given_id(headers)
        self._origins.check(scope["method"], headers)
        if self._keys and scope["path"] not in self._public:
            key_id = self._keys.find(presented_key(headers))
            if key_id is None:
                raise ApiError(401, "Invalid API Key", code="invalid_api_key")
            state["key_id"] = key_id
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            raise self._too_large()

    def _counted(self, receive: Receive, held: HeldBody) -> Receive:
        """Return `receive` with a limit on the size of the body."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise self._too_large()
            if not held.grow(size):
                words = "the bodies of other requests leave no room for a body of this size"
                after = self._retry_after
                raise ApiError(503, words, code="server_overloaded", retry_after=after)
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._max_body} bytes", code="request_too_large"
        )


def _routing_error(error: HTTPException, scope: Scope) -> ApiError:
    path, method = scope["path"], scope["method"]
    words = {404: f"there is no {path}", 405: f"{path} does not take {method}"}
    return ApiError(error.status_code, words.get(error.status_code, error.detail))


class BodyRoom:
    """Bytes that the bodies of all requests can hold, from their arrival to the answer's end."""

    def __init__(self, size: int) -> None:
        self.free = size


class HeldBody:
    """The part of the room that one request's body takes; its first SMALL_BODY bytes are free.

    Belongs to the event loop.
    """

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._taken = 0

    def grow(self, size: int) -> bool:
        """Reserve room for a body of this size in bytes; return False if there is none."""
        more = max(0, size - SMALL_BODY) - self._taken
        if more > self._room.free:
            return False
        if more > 0:
            self._taken += more
            self._room.free -= more
        return True

    def release(self) -> None:
        self._room.free += self._taken


def new_id() -> str:
    """Return an id that no other request has: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def given_id(headers: Mapping[str, str]) -> str:
    """Return the id that a request came with, "" if it has none that is short and plain."""
    request_id = headers.get(REQUEST_ID_HEADER, "")
    return request_id if _SAFE.fullmatch(request_id) else ""
