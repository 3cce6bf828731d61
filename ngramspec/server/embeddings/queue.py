"""EmbeddingQueue: computes the vectors of requests in a thread of its own, in turns.

And how a request for embeddings is answered, whatever its protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from ngramspec.arrays import TokenIds, Vectors
from ngramspec.errors import CapacityError, NgramspecError, QuotaError, StateError
from ngramspec.server.bridge.intake import TENANTS_SHARE, Incoming
from ngramspec.server.errors import api_error
from ngramspec.server.http.connections import unless_gone
from ngramspec.server.model import ServedEmbedder
from ngramspec.server.service import Handler, in_thread, service_of

MOST_WAITING = 64  # requests, the running ones included
CLOSE_SECONDS = 10.0


@dataclass(eq=False)
class _Job:
    """Texts of one request that are still to be computed, and the vectors so far.

    tenant: Who asked, "" if there is only one.
    left: Nobody waits for it any more.
    """

    texts: deque[TokenIds]
    tenant: str = ""
    left: bool = False
    done: Future[list[Vectors]] = field(default_factory=Future)
    vectors: list[Vectors] = field(default_factory=list)


class EmbeddingQueue:
    """Tenants take turns, and so do the requests of each: a turn computes a request's next texts.

    Args:
        embedder: Computes vectors; it is only used by the queue's thread.

    The thread starts with the first request. Used by one event loop; any thread can close it.
    """

    def __init__(self, embedder: ServedEmbedder) -> None:
        self.embedder = embedder
        # By tenant, without the one that is computed; whose turn is next comes first.
        self._jobs: dict[str, deque[_Job]] = {}
        self._now: _Job | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(
        self, texts: Sequence[TokenIds], receive: Receive, tenant: str = ""
    ) -> list[Vectors]:
        """Return the vectors of texts.

        Args:
            texts: Each has 1..embedder.most_tokens tokens.
            receive: The connection's; nothing more is computed if the client leaves.
            tenant: Who asks; with one, it may not have all places.

        Raises:
            ClientGone: The client left.
            CapacityError: Too many requests wait.
            QuotaError: Too many of this tenant's do.
            StateError: It is closed.
            BackendError: The model failed.
        """
        if not texts:
            return []
        job = _Job(deque(texts), tenant)
        self._add(job)
        try:
            return await unless_gone(asyncio.wrap_future(job.done), receive)
        finally:
            self._forget(job)

    @property
    def num_waiting(self) -> int:
        """Return how many requests have texts that are not computed yet."""
        with self._changed:
            return self._num_jobs

    @property
    def _num_jobs(self) -> int:
        return len(self._unfinished())

    def _unfinished(self) -> list[_Job]:
        """Return the requests that somebody waits for."""
        now = [self._now] if self._now is not None and not self._now.left else []
        return [*now, *itertools.chain(*self._jobs.values())]

    def close(self) -> None:
        """Refuse all requests, and wait for the texts that are being computed."""
        with self._changed:
            self._closed = True
            jobs, thread = self._unfinished(), self._thread
            self._jobs.clear()
            self._changed.notify()
        for job in jobs:
            job.left = True
            _fail(job, StateError("the server is closing"))
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def _add(self, job: _Job) -> None:
        with self._changed:
            if self._closed:
                raise StateError("the server is closing")
            if self._num_jobs >= MOST_WAITING:
                raise CapacityError(f"{MOST_WAITING} requests for embeddings wait already")
            own = sum(other.tenant == job.tenant for other in self._unfinished())
            if job.tenant and own >= TENANTS_SHARE * MOST_WAITING:
                raise QuotaError(f"{own} requests for embeddings with this key wait already")
            self._put(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="ngramspec-embeddings", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _forget(self, job: _Job) -> None:
        with self._changed:
            job.left = True
            jobs = self._jobs.get(job.tenant, deque())
            with contextlib.suppress(ValueError):
                jobs.remove(job)
            if not jobs:
                self._jobs.pop(job.tenant, None)

    def _put(self, job: _Job) -> None:
        """Put a request behind the others of its tenant."""
        self._jobs.setdefault(job.tenant, deque()).append(job)

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            job, texts = turn
            error = None
            try:
                job.vectors += self.embedder.embed(texts)
            except Exception as caught:
                error = caught
            with self._changed:
                self._now = None
                if error is None and job.texts and not job.left:
                    self._put(job)
                    continue
            if error is not None:
                _fail(job, error)
            else:
                with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                    job.done.set_result(job.vectors)

    def _next(self) -> tuple[_Job, list[TokenIds]] | None:
        """Wait for a request; return it with its next texts."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            tenant, jobs = next(iter(self._jobs.items()))
            self._now = job = jobs.popleft()
            del self._jobs[tenant]
            if jobs:
                self._jobs[tenant] = jobs  # its next turn comes after those of all others
        texts = [job.texts.popleft()]
        room = self.embedder.most_tokens - len(texts[0])
        while job.texts and len(texts) < self.embedder.most_texts:
            room -= len(job.texts[0])
            if room < 0:
                break
            texts.append(job.texts.popleft())
        return job, texts


def _fail(job: _Job, error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
        job.done.set_exception(error)


class TextsPlan(Protocol):
    """What a request wants: vectors of these texts."""

    @property
    def texts(self) -> Sequence[TokenIds]:
        """Return the texts."""


P = TypeVar("P", bound=TextsPlan)


def embeds(plan: Callable[[Incoming], P], whole: Callable[[P, Sequence[Vectors]], Any]) -> Handler:
    """Return the handler that reads and makes JSON in threads, and computes in the queue's.

    Args:
        plan: Reads the body of a request; raises ApiError if it cannot be answered.
        whole: Makes the JSON of a plan and the vectors of its texts.

    It raises ApiError if there is no room, too.
    """

    async def handle(request: Request) -> Response:
        service = service_of(request)
        incoming = await service.take(request)
        texts_plan = await service.bridge.intake.run(plan, incoming)
        queue: EmbeddingQueue = request.app.state.embeddings
        try:
            vectors = await queue.run(texts_plan.texts, request.receive, incoming.tenant)
        except NgramspecError as error:
            raise api_error(error, service.settings.retry_after) from error
        return await in_thread(partial(whole, texts_plan, vectors))

    return handle
