"""Intake: threads that do what requests ask for before the engine has its turn.

Incoming: a request as it came in, and what answers it; Plan: what it asks for.

A thread cannot be killed, so the work for a body must be bounded in time and memory: by its size
and by the caps on its fields. This module bounds how many bodies are processed or wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ngramspec.errors import CapacityError, NgramspecError, StateError
from ngramspec.server.errors import api_error, bad_request
from ngramspec.server.http.connections import ClientGone, unless_gone
from ngramspec.server.model import ServedModel
from ngramspec.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import Receive

    from ngramspec.engine import Request

THREADS = 4
MOST = 256  # bodies that are processed or wait to be
TENANTS_SHARE = 0.75  # of the bounds, at most, for one of several tenants
QUICK_SECONDS = 0.05  # most work ends within it; the client is watched only after it
LAST_SECONDS = 10.0  # how long `finish` waits

T = TypeVar("T")


@dataclass(frozen=True)
class Incoming:
    """A request as it came in, and what answers it.

    raw: Its body.
    namespace: Of its key, "" if keys share what is learned.
    tenant: Whose share of the server it uses, "" without several keys.
    name: What its client or a proxy calls it, "" = nothing.
    receive: The connection's, by which it is known whether the client has left; None = unknown.
    """

    raw: bytes
    served: ServedModel
    settings: ServerSettings
    namespace: str = ""
    tenant: str = ""
    name: str = ""
    receive: Receive | None = None


@dataclass(frozen=True)
class Plan:
    """What a body asks for, ready for the engine: one request per choice."""

    requests: Sequence[Request]
    stream: bool
    timings_per_token: bool
    spans: bool  # stream events mark the text that accepted drafts made


@dataclass(eq=False)
class _Job:
    """Work that runs or waits to; size: bytes of the body that it is for."""

    work: Callable[[], Any]
    tenant: str
    size: int
    future: Future[Any] = field(default_factory=Future)


class Intake:
    """Runs the work of requests in a few threads and refuses more than a bound at once.

    Args:
        most: Largest number of jobs that run or wait.
        max_bytes: Largest total size of their bodies; a body alone is always accepted.

    Tenants are served in turn, the jobs of each in their order, and one of them can fill three
    quarters of the bounds only. `run` is for one event loop; any thread may call the other methods.
    """

    def __init__(self, most: int = MOST, max_bytes: int = 1 << 27) -> None:
        self._executor = ThreadPoolExecutor(THREADS, "ngramspec-intake")
        self._most, self._max_bytes = most, max_bytes
        self._lock = threading.Lock()  # guards the next
        self._jobs: set[_Job] = set()
        self._turns: dict[str, deque[_Job]] = {}  # those that wait; whose turn is next comes first
        self._closed = False

    async def run(self, work: Callable[[Incoming], T], incoming: Incoming) -> T:
        """Return work(incoming), which runs in one of the threads.

        Where this raises ClientGone or is cancelled, the work may still run.

        Raises:
            ApiError: The work failed, there is no room for it, or the server is closing.
            ClientGone: The client left.
        """
        try:
            self._check_room(len(incoming.raw), incoming.tenant)
            return await self._result(partial(work, incoming), incoming)
        except NgramspecError as error:
            raise api_error(error, incoming.settings.retry_after) from error
        except RecursionError as error:
            raise bad_request("the body is nested too deep") from error

    async def _result(self, work: Callable[[], T], incoming: Incoming) -> T:
        future = self.submit(work, len(incoming.raw), incoming.tenant)
        waiting = asyncio.wrap_future(future)
        try:
            await asyncio.wait((waiting,), timeout=QUICK_SECONDS)
            if not waiting.done():
                with contextlib.suppress(ClientGone):  # work that ends just then counts
                    await unless_gone(asyncio.wait((waiting,)), incoming.receive)
            if not waiting.done():
                raise ClientGone
            if waiting.cancelled():
                raise StateError("the server is closing")
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()  # nobody asks for its error
                future.cancel()  # if it has not begun

    def _check_room(self, size: int, tenant: str) -> None:
        """Raise CapacityError if there is none."""
        with self._lock:
            jobs = list(self._jobs)
        own = [job for job in jobs if job.tenant == tenant]
        bounds = [(jobs, 1.0, "")] + [(own, TENANTS_SHARE, " with this key")] * bool(tenant)
        for those, share, whose in bounds:
            held = sum(job.size for job in those)
            too_many = len(those) >= share * self._most
            if too_many or (held and held + size > share * self._max_bytes):
                raise CapacityError(f"{len(those)} requests{whose} are being prepared already")

    def submit(self, work: Callable[[], T], size: int = 0, tenant: str = "") -> Future[T]:
        """Run work() when it is its tenant's turn, without checking the bounds; return its future.

        Raises:
            StateError: It is closed.

        Cost: O(1).
        """
        job = _Job(work, tenant, size)
        with self._lock:
            if self._closed:
                raise StateError("the server is closing")
            self._jobs.add(job)
            self._turns.setdefault(tenant, deque()).append(job)
            self._executor.submit(self._run_next)
        job.future.add_done_callback(lambda _: self._forget(job))
        return job.future

    def close(self) -> None:
        """Accept no more work, and drop what has not begun."""
        with self._lock:
            self._closed = True
            self._executor.shutdown(wait=False, cancel_futures=True)
            dropped = [job for jobs in self._turns.values() for job in jobs]
            self._turns.clear()
        for job in dropped:
            job.future.cancel()

    def join(self) -> None:
        """Close, and wait for running work, however long it takes."""
        self.close()
        self._executor.shutdown(wait=True)

    def finish(self) -> bool:
        """Close, and wait for running work; return False if it still runs after LAST_SECONDS."""
        self.close()
        with self._lock:
            running = [job.future for job in self._jobs]
        return not wait(running, LAST_SECONDS).not_done

    def _forget(self, job: _Job) -> None:
        with self._lock:
            self._jobs.discard(job)

    def _run_next(self) -> None:
        with self._lock:
            if not self._turns:
                return  # closed
            tenant, jobs = next(iter(self._turns.items()))
            job = jobs.popleft()
            del self._turns[tenant]
            if jobs:
                self._turns[tenant] = jobs  # its next turn comes after those of all others
        if not job.future.set_running_or_notify_cancel():
            return
        try:
            result = job.work()
        except BaseException as error:
            job.future.set_exception(error)
            del job  # breaks the cycle of the error's traceback and the future
        else:
            job.future.set_result(result)
