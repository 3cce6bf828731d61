"""Preparation: threads that parse bodies and submit their requests.

A thread cannot be killed, so the work for a body must be bounded in time and memory: by its size
and by the caps on its fields. This module bounds how many bodies are processed or wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from starlette.types import Receive

from ngramspec.errors import CapacityError, StateError
from ngramspec.server.http.client_gone import ClientGone, unless_gone

THREADS = 4
MOST = 256  # bodies that are prepared or wait to be
TENANTS_SHARE = 0.75  # of the bounds, at most, for one of several tenants
QUICK_SECONDS = 0.05  # most preparations end within it; the client is watched only after it
LAST_SECONDS = 10.0  # how long `finish` waits

T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class Preparation:
    """Runs the work of requests in a few threads and refuses more than a bound at once.

    Args:
        most: Largest number of jobs that run or wait.
        max_bytes: Largest total size of their bodies; a body alone is always accepted.

    Tenants are served in turn, and one of them can fill three quarters of the bounds only.
    Used by one event loop. Any thread can call close.
    """

    def __init__(self, most: int = MOST, max_bytes: int = 1 << 27) -> None:
        self._threads = FairThreads(THREADS, "ngramspec-prepare")
        self._most, self._max_bytes = most, max_bytes
        self._lock = threading.Lock()  # guards the next
        self._running: dict[Future[Any], tuple[str, int]] = {}  # tenant and bytes of the body
        self._closed = False

    async def run(
        self,
        work: Callable[[], T],
        *,
        size: int = 0,
        tenant: str = "",
        receive: Receive | None = None,
        abandon: Callable[[Future[T]], None] = lambda future: None,
    ) -> T:
        """Run work() and return its result.

        Args:
            work: Runs in one of the threads.
            size: Bytes of the body that it is for.
            tenant: Whose it is; "" = there are no tenants.
            receive: The connection's; the call ends if the client leaves.
            abandon: Called when nobody waits for the work any more; it may still run.

        Raises:
            CapacityError: Too many jobs or bytes run or wait already.
            StateError: It is closed.
            ClientGone: The client left.
        """
        self._check_room(size, tenant)
        future = self.submit(work, size, tenant)
        waiting = asyncio.wrap_future(future)
        try:
            await asyncio.wait((waiting,), timeout=QUICK_SECONDS)
            if not waiting.done():
                with contextlib.suppress(ClientGone):  # work that ends just then counts
                    await unless_gone(asyncio.wait((waiting,)), receive)
            if not waiting.done():
                raise ClientGone
            if waiting.cancelled():
                raise StateError("the server is closing")
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()  # nobody asks for its error
                future.cancel()  # if it has not begun
                abandon(future)

    def _check_room(self, size: int, tenant: str) -> None:
        """Raise CapacityError if there is none."""
        with self._lock:
            running = list(self._running.values())
        own = [job for job in running if job[0] == tenant]
        bounds = [(running, 1.0, "")] + [(own, TENANTS_SHARE, " with this key")] * bool(tenant)
        for jobs, share, whose in bounds:
            held = sum(num_bytes for _, num_bytes in jobs)
            too_many = len(jobs) >= share * self._most
            if too_many or (held and held + size > share * self._max_bytes):
                raise CapacityError(f"{len(jobs)} requests{whose} are being prepared already")

    def submit(self, work: Callable[[], T], size: int = 0, tenant: str = "") -> Future[T]:
        """Run work() in one of the threads, without checking the bounds; return its future.

        Raises:
            StateError: It is closed.
        """
        if self._closed:
            raise StateError("the server is closing")
        future = self._threads.submit(work, tenant)

        def done(future: Future[T]) -> None:
            with self._lock:
                del self._running[future]

        with self._lock:
            self._running[future] = (tenant, size)
        future.add_done_callback(done)
        return future

    def close(self) -> None:
        """Accept no more work, and drop what has not started."""
        self._closed = True
        self._threads.close(wait=False)

    def join(self) -> None:
        """Close, and wait for running work, however long it takes."""
        self._closed = True
        self._threads.close(wait=True)

    def finish(self) -> bool:
        """Close, and wait for running work; return False if it still runs after LAST_SECONDS."""
        self.close()
        with self._lock:
            running = list(self._running)
        return not wait(running, LAST_SECONDS).not_done


class FairThreads:
    """FairThreads(threads, name): run jobs for all tenants in turn, those of each in their order.

    Thread-safety: any thread may call any method.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()  # guards the next
        self._waiting: dict[str, deque[_Job]] = {}  # by tenant; whose turn is next comes first

    def submit(self, work: Callable[[], T], tenant: str) -> Future[T]:
        """Run work() when it is its tenant's turn; return its future.

        Raises:
            RuntimeError: It is closed.

        Cost: O(1).
        """
        future: Future[T] = Future()
        with self._lock:
            self._executor.submit(self._run_next)
            self._waiting.setdefault(tenant, deque()).append((future, work))
        return future

    def close(self, *, wait: bool) -> None:
        """Accept no more jobs and cancel those that have not begun; wait: for the others."""
        with self._lock:
            self._executor.shutdown(wait=False, cancel_futures=True)
            dropped = [future for jobs in self._waiting.values() for future, _ in jobs]
            self._waiting.clear()
        for future in dropped:
            future.cancel()
        if wait:
            self._executor.shutdown(wait=True)

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # closed
            tenant, jobs = next(iter(self._waiting.items()))
            future, work = jobs.popleft()
            del self._waiting[tenant]
            if jobs:
                self._waiting[tenant] = jobs  # its next turn comes after those of all others
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
            del future  # breaks the cycle of the error's traceback and the future
        else:
            future.set_result(result)
