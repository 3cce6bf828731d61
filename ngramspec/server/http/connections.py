"""Connections: how many can be open, and how long a client can keep one waiting.

ClientGone, and waiting for work unless the client leaves first. Traffic: counts of what went wrong
between clients and server: errors, cancellations, drops.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from starlette.types import Receive
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ngramspec.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import Scope

    from ngramspec.server.settings import ServerSettings

log = logging.getLogger(__name__)
DROP = "drop_connection"  # key in a scope's state: function that closes it, losing unsent bytes
QUIET_SECONDS = 10.0  # between two log lines about dropped connections

HEAD, IDLE, BODY, BUSY = "head", "idle", "body", "busy"  # what a connection is waiting for
T = TypeVar("T")
# Why a request was cancelled: its client left, read too slowly, no slot was free in time, the
# server closes, the engine hangs or has ended, or something else of the same answer failed.
Cause = Literal["client", "slow_client", "queue_timeout", "shutdown", "engine", "error"]
CAUSES: tuple[Cause, ...] = (
    *("client", "slow_client", "queue_timeout", "shutdown", "engine", "error"),
)
# Why a connection was closed without its client's wish, and how the log says it.
DROPS = {
    "crowded": "there are too many",
    "head": "the head of its request did not come",
    "unread": "its client does not read",
    "shutdown": "the server closes",
}
# Told from the start on, as 0: the first of them is then seen as an increase.
USUAL_ERRORS = (
    ("401", "invalid_api_key"),
    ("429", "rate_limit_exceeded"),
    ("500", "server_error"),
    ("503", "server_overloaded"),
    ("503", "too_many_connections"),
)


class Traffic:
    """Counts since the start. The event loop writes them, any thread may read them.

    errors: By status and code of the error; both come from a few of ours, never from a client.
    cancelled: Requests that ended as cancelled, by cause.
    dropped: Connections that the server closed, by a key of DROPS.
    num_connections: Open connections now.
    """

    def __init__(self) -> None:
        self.errors: dict[tuple[str, str], int] = dict.fromkeys(USUAL_ERRORS, 0)
        self.cancelled: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self.dropped = dict.fromkeys(DROPS, 0)
        self.num_connections = 0

    def count_error(self, error: ApiError) -> None:
        """Count an error that a client is told. Cost: O(1)."""
        key = str(error.status), error.code or error.type
        self.errors[key] = self.errors.get(key, 0) + 1


class Connections:
    """All connections of a server, and their limits. Belongs to the event loop.

    When there are too many, the one that has waited longest for its client is closed, whether it
    waits for the head of a request, its body or the next request. If none waits for its client, the
    new one is refused.

    traffic: Counts them.
    """

    def __init__(self, settings: ServerSettings, traffic: Traffic) -> None:
        self.open: set[Connection] = set()
        self._settings = settings
        self._traffic = traffic
        self._last_log = -QUIET_SECONDS  # loop time

    @property
    def num_dropped(self) -> int:
        """Return how many were closed without their client's wish."""
        return sum(self._traffic.dropped.values())

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the class of a connection, for uvicorn's setting `http`."""
        protocol = type("LimitedProtocol", (Connection, AutoHTTPProtocol), {"connections_": self})
        return cast("type[asyncio.Protocol]", protocol)

    def add(self, connection: Connection) -> None:
        """Add a new connection, or refuse it."""
        self.open.add(connection)
        self._traffic.num_connections = len(self.open)
        living = [one for one in self.open if not one.transport.is_closing()]
        if len(living) <= self._settings.max_connections:
            return
        waiting = [one for one in living if one.waits_for != BUSY and one is not connection]
        if waiting:
            self.drop(min(waiting, key=lambda one: one.since), "crowded")
        else:
            code = "too_many_connections"
            error = ApiError(503, "too many connections", code=code, retry_after=1)
            self._traffic.count_error(error)
            connection.refuse(error)

    def forget(self, one: Connection) -> None:
        self.open.discard(one)
        self._traffic.num_connections = len(self.open)

    def look(self, now: float) -> None:
        """Close the connections whose clients take too long. Cost: O(connections).

        Reading a body has its own timeout, and uvicorn has one for the next request.
        """
        settings = self._settings
        for one in list(self.open):
            waited = now - one.since
            if one.waits_for == HEAD and waited > settings.header_timeout:
                self.drop(one, "head")
            elif one.unread_for(now) > settings.slow_client_timeout:
                self.drop(one, "unread")

    def drop_unsent(self) -> None:
        """Close the connections whose requests are not complete, at shutdown."""
        for one in list(self.open):
            if one.waits_for == BODY:
                self.drop(one, "shutdown")

    def drop(self, one: Connection, why: str) -> None:
        """Close a connection at once, without what is still to be sent; why: a key of DROPS."""
        if not one.dropped:
            one.dropped = True
            self._traffic.dropped[why] += 1
            now = asyncio.get_running_loop().time()
            if now - self._last_log > QUIET_SECONDS:
                self._last_log = now
                log.warning("a connection is closed: %s; %d so far", DROPS[why], self.num_dropped)
        one.transport.abort()


class Connection(asyncio.Protocol):
    """Added to uvicorn's protocol classes: records what the connection waits for, since when."""

    connections_: Connections
    # of uvicorn's protocols
    transport: asyncio.Transport
    cycle: Any  # the current or last request; None before the first
    loop: asyncio.AbstractEventLoop
    app_state: dict[str, Any]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        drop = functools.partial(self.connections_.drop, self, "unread")
        self.app_state = {**self.app_state, DROP: drop}
        self.dropped = False
        self.waits_for = HEAD
        self.since = self.loop.time()  # loop time since when
        self._unsent, self._unsent_since = 0, self.since
        self.connections_.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections_.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.waits_for == IDLE:
            self._wait_for(HEAD)
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()  # type: ignore[misc]
        self._note()

    def unread_for(self, now: float) -> float:
        """Return for how many seconds the client has read nothing of a complete response."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent or self.waits_for == BUSY:
            self._unsent, self._unsent_since = unsent, now
        return now - self._unsent_since

    def refuse(self, error: ApiError) -> None:
        """Answer with an error before any request is read, and close."""
        body = json.dumps(error.body("")).encode()
        head = (
            f"HTTP/1.1 {error.status} Service Unavailable\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: {error.retry_after}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _note(self) -> None:
        cycle = self.cycle
        if cycle is None:
            self._wait_for(HEAD)
        elif not cycle.response_complete:
            pipelined = getattr(self, "pipeline", None)  # httptools': cycle is the last of several
            self._wait_for(BODY if cycle.more_body and not pipelined else BUSY)
        elif cycle.more_body or self.waits_for == HEAD:
            # The rest of a body that nobody reads, or a part of the next request's head.
            self._wait_for(HEAD)
        else:
            self._wait_for(IDLE)

    def _wait_for(self, what: str) -> None:
        if what != self.waits_for:
            self.waits_for, self.since = what, self.loop.time()


def dropper(scope: Scope) -> Callable[[], None]:
    """Return a function that closes a request's connection without waiting for its client."""
    drop: Callable[[], None] = scope.get("state", {}).get(DROP, _nothing)
    return drop


def _nothing() -> None:
    pass


class ClientGone(ApiError):
    """The client left before it had its answer; nobody gets it, it is counted and logged."""

    def __init__(self) -> None:
        super().__init__(499, "the client disconnected", code="client_left")


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed its connection.

    receive: The connection's; the body must have been read.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(
    work: Awaitable[T], receive: Receive | None, timeout: float | None = None
) -> T:
    """Return what comes of work; give it up if the client leaves or it takes too long.

    Args:
        work: What is given up is cancelled, and has ended when this returns.
        receive: The connection's, which nobody else may read meanwhile; None = none is watched.
        timeout: Seconds, None = any number.

    Raises:
        ClientGone: The client left.
        asyncio.TimeoutError: The time is over.
        Exception: The work failed.

    For the event loop. Cost: one task more than the work's while it waits.
    """
    running = asyncio.ensure_future(work)
    watched = [] if receive is None else [asyncio.ensure_future(until_gone(receive))]
    tasks = (running, *watched)
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if running in done:
            return running.result()
        raise ClientGone if done else asyncio.TimeoutError
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
