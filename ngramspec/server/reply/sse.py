"""EventStream: writes an answer's chunks as events, with little work per chunk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ngramspec.server.bridge.answer import Answer, Item
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.errors import INTERNAL, REQUEST_ID_HEADER, ApiError
from ngramspec.server.http.connections import ClientGone, dropper, unless_gone

if TYPE_CHECKING:
    from ngramspec.engine import Generation

log = logging.getLogger(__name__)
FIRST_CHUNK_SECONDS = 1.0  # wait for the first chunk, so that an error can still set the status
SSE = "text/event-stream; charset=utf-8"
SSE_PING = b": ping\n\n"
SSE_DONE = b"data: [DONE]\n\n"


class Events(Protocol):
    """How chunks look in one API. Bytes prepared ahead keep `encode` cheap."""

    media_type: str

    @property
    def ping(self) -> bytes:
        """Return what keeps the connection visible while nothing else is sent, b"" for nothing."""

    def encode(self, items: Sequence[Item]) -> bytes:
        """Return the events for some chunks, finished generations included; may be empty."""

    def end(self) -> bytes:
        """Return the bytes to send when all generations are finished."""

    def error(self, error: ApiError) -> bytes:
        """Return the event for a failure after the response has started."""


def json_text(text: str) -> bytes:
    """Return a JSON string that is one line of a stream, as json_line."""
    return _on_one_line(encode_basestring(text))


def json_line(value: Any) -> bytes:
    """Return a JSON value that is one line of a stream; lone surrogates in it become "?"."""
    return _on_one_line(json.dumps(value, ensure_ascii=False))


def _on_one_line(text: str) -> bytes:
    # JSON leaves these as they are, and many clients end a line there, as Python does.
    for end in "\x85\u2028\u2029":
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text.encode("utf-8", "replace")


def json_event(value: Any) -> bytes:
    """Return an event that holds a JSON value, as json_line."""
    return b"data: " + json_line(value) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """Return an event that is named by the type of its JSON object."""
    return b"event: %b\n%b" % (value["type"].encode(), json_event(value))


class EventStream(Response):
    """Streams an answer. A client that disconnects, or reads too slowly, loses its slot.

    large: An event may be large: they are made in a thread.
    """

    def __init__(
        self, bridge: Bridge, answer: Answer, events: Events, *, large: bool = False
    ) -> None:
        super().__init__()
        self._large = large
        self._bridge = bridge
        self._answer = answer
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the answer is complete or the client disconnects."""
        self._answer.drop = dropper(scope)
        try:
            await unless_gone(self._run(scope, receive, send), receive)
        except ClientGone as error:
            self._bridge.traffic.count_error(error)
        finally:
            self._bridge.close(self._answer)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer, events = self._answer, self._events
        try:
            items = await self._first()
        except ApiError as error:
            self._bridge.traffic.count_error(error)
            await error.response(scope["path"], answer.request_id)(scope, receive, send)
            return
        await send(self._start())
        try:
            while items != []:
                if items is None:
                    body = events.ping
                elif self._large:
                    body = await asyncio.to_thread(events.encode, items)
                else:
                    body = events.encode(items)
                if body:
                    await self._write(send, body)
                items = await answer.take()
            body = events.end()
        except ApiError as error:
            body = self._failure(error)
        except Exception:
            log.exception("request %s: the answer to %r failed", answer.request_id, scope["path"])
            failure = ApiError(500, INTERNAL)
            answer.cancel(failure, "error")
            body = self._failure(failure)
        await self._write(send, body, last=True)

    def _failure(self, error: ApiError) -> bytes:
        """Return the event of an error, which is counted."""
        self._bridge.traffic.count_error(error)
        return self._events.error(error)

    async def _first(self) -> list[Item] | None:
        """Wait a little for the first chunk: until then an error can still set the status."""
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._answer.take(), FIRST_CHUNK_SECONDS)
        return None

    async def _write(self, send: Send, body: bytes, last: bool = False) -> None:
        answer, time = self._answer, asyncio.get_running_loop().time
        answer.blocked_since = answer.written = time()
        await send({"type": "http.response.body", "body": body, "more_body": not last})
        answer.blocked_since = 0.0

    def _start(self) -> Message:
        headers = [
            (b"content-type", self._events.media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        if self._answer.request_id:
            headers.append((REQUEST_ID_HEADER.encode(), self._answer.request_id.encode()))
        return {"type": "http.response.start", "status": 200, "headers": headers}


async def finished(bridge: Bridge, answer: Answer, receive: Receive) -> list[Generation]:
    """Wait for all of an answer that is not streamed; cancel it if the client disconnects.

    Raises:
        ApiError: A generation failed.
        ClientGone: The client left.
    """
    try:
        return await unless_gone(answer.finish(), receive)
    finally:
        bridge.close(answer)
