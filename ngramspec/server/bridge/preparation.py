"""Preparation: threads of their own for reading bodies and submitting what they ask for.

What a body asks for is made in time and memory that its size, and the caps on its fields, bound: a
thread cannot be ended. Here is the bound on how many bodies are looked at, and wait to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from starlette.types import Receive

from ngramspec.errors import CapacityError, StateError

THREADS = 4
MOST = 256  # bodies that are prepared or wait to be
QUICK_SECONDS = 0.05  # usual preparations are over by then; only for others the client is watched
LAST_SECONDS = 10.0  # that `finish` waits

T = TypeVar("T")


class ClientGone(Exception):
    """The client left while its request was prepared."""


class Preparation:
    """Runs work of requests in a few threads; refuses more than a bound at once.

    Args:
        most: Works that run or wait.
        max_bytes: Of the bodies that they are for, together; one is always taken.

    Used by one event loop. close may be called from any thread.
    """

    def __init__(self, most: int = MOST, max_bytes: int = 1 << 27) -> None:
        self._executor = ThreadPoolExecutor(THREADS, "ngramspec-prepare")
        self._most, self._max_bytes = most, max_bytes
        self._lock = threading.Lock()  # guards the next two
        self._running: set[Future[Any]] = set()
        self._held = 0  # bytes of their bodies
        self._closed = False

    async def run(
        self,
        work: Callable[[], T],
        *,
        size: int = 0,
        receive: Receive | None = None,
        abandon: Callable[[Future[T]], None] = lambda future: None,
    ) -> T:
        """Return what work() returns.

        Args:
            work: Runs in one of the threads.
            size: Bytes of the body that it is for.
            receive: Of the client's connection; a client that leaves is not waited for.
            abandon: Called when nobody waits for the work any more, which may go on.

        Raises:
            CapacityError: Too much is there already.
            StateError: It is closed.
            ClientGone: The client left.
        """
        count, held = len(self._running), self._held
        if count >= self._most or (held and held + size > self._max_bytes):
            raise CapacityError(f"{count} requests are being prepared already")
        future = self.submit(work, size)
        waiting = asyncio.wrap_future(future)
        try:
            await asyncio.wait((waiting,), timeout=QUICK_SECONDS)
            if not waiting.done():
                await _until_done_or_gone(waiting, receive)
            if waiting.cancelled():
                raise StateError("the server is closing")
            if not waiting.done():
                raise ClientGone
            return waiting.result()
        finally:
            if not waiting.done():
                future.cancel()  # if it has not begun
                abandon(future)

    def submit(self, work: Callable[[], T], size: int = 0) -> Future[T]:
        """Run work() in one of the threads, however much is there; return its future.

        Raises:
            StateError: It is closed.
        """
        if self._closed:
            raise StateError("the server is closing")
        future = self._executor.submit(work)

        def done(future: Future[T]) -> None:
            with self._lock:
                self._running.discard(future)
                self._held -= size

        with self._lock:
            self._running.add(future)
            self._held += size
        future.add_done_callback(done)
        return future

    def close(self) -> None:
        """Take no more, and forget what has not begun."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Close, and wait for what runs, however long it takes."""
        self.close()
        self._executor.shutdown(wait=True)

    def finish(self) -> bool:
        """Close, and wait for what runs; False when it goes on after LAST_SECONDS."""
        self.close()
        with self._lock:
            running = list(self._running)
        return not wait(running, LAST_SECONDS).not_done


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_done_or_gone(waiting: asyncio.Future[T], receive: Receive | None) -> None:
    if receive is None:
        await asyncio.wait((waiting,))
        return
    watch = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((waiting, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
