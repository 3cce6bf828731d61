"""Bridge: hands requests to the engine and carries chunks from its thread to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ngramspec.errors import NgramspecError
from ngramspec.server.answer import Answer
from ngramspec.server.errors import ApiError, api_error

if TYPE_CHECKING:
    from starlette.types import Scope

    from ngramspec.engine import Chunk, Engine, Request
    from ngramspec.server.settings import ServerSettings

log = logging.getLogger(__name__)
CHECK_SECONDS = 0.5  # how often waiting and blocked answers are looked at


class Plan(Protocol):
    """What a route made of a request's body."""

    @property
    def requests(self) -> Sequence[Request]:
        """Return one request per choice."""

    @property
    def stream(self) -> bool:
        """Tell whether chunks are wanted as they come."""


P = TypeVar("P", bound=Plan)


class Bridge:
    """Between the engine's thread and one event loop.

    The loop is woken once per step of the engine at most, however many answers get a chunk in it,
    and not at all for answers that are not streamed until they end.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: deque[tuple[Answer, int, Chunk]] = deque()
        self._woken = False
        self._answers: set[Answer] = set()
        self._closing = False
        # Closes the connection of a scope; what runs the server sets it.
        self.disconnect: Callable[[Scope], None] = lambda scope: None

    @property
    def num_open(self) -> int:
        """Return how many answers are on their way."""
        return len(self._answers)

    async def open(self, prepare: Callable[[], P], tenant: str = "") -> tuple[P, Answer]:
        """Prepare requests and submit them, both in a thread: that may take milliseconds.

        tenant: Who asks, as for Engine.submit.

        Raises:
            ApiError: The request is refused; nothing runs.
        """
        self._loop = asyncio.get_running_loop()
        arrived = self._engine.announce()
        try:
            plan, answer = await asyncio.to_thread(self._open, prepare, arrived, tenant)
        finally:
            arrived()  # also when it was cancelled before the thread began
        answer.opened = answer.written = self._loop.time()
        self._answers.add(answer)
        return plan, answer

    def close(self, answer: Answer) -> None:
        """Forget an answer; what still runs of it is cancelled."""
        self._answers.discard(answer)
        if not answer.ended:
            answer.cancel(ApiError(499, "the client has gone"))

    def refuse(self) -> None:
        """Take no more requests."""
        self._closing = True

    def cancel_all(self) -> None:
        """End all answers: the server closes."""
        for answer in list(self._answers):
            answer.cancel(self._closed())

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look after waiting answers in the block."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- in a worker thread ------------------------------------------------------------------------

    def _open(
        self, prepare: Callable[[], P], arrived: Callable[[], None], tenant: str
    ) -> tuple[P, Answer]:
        try:
            return self._submit(prepare, tenant)
        finally:
            arrived()  # before the event loop has its turn

    def _submit(self, prepare: Callable[[], P], tenant: str) -> tuple[P, Answer]:
        if self._closing:
            raise self._closed()
        retry_after = self._settings.retry_after
        try:
            plan = prepare()
        except NgramspecError as error:
            raise api_error(error, retry_after) from error
        most = self._settings.max_buffered_chunks
        answer = Answer(self._put, streamed=plan.stream, max_items=most)
        generations = []
        try:
            for index, request in enumerate(plan.requests):
                generations.append(self._engine.submit(request, answer.receiver(index), tenant))
        except Exception as error:
            for made in generations:
                made.cancel()
            if isinstance(error, NgramspecError):
                raise api_error(error, retry_after) from error
            raise
        answer.generations = generations
        return plan, answer

    # -- in the engine's thread --------------------------------------------------------------------

    def _put(self, answer: Answer, index: int, chunk: Chunk) -> None:
        self._arrived.append((answer, index, chunk))
        if not self._woken:
            self._woken = True
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
                self._loop.call_soon_threadsafe(self._deliver)

    # -- in the event loop -------------------------------------------------------------------------

    def _deliver(self) -> None:
        self._woken = False  # before the queue is read: what comes after that wakes again
        arrived = self._arrived
        while arrived:
            answer, index, chunk = arrived.popleft()
            answer.deliver(index, chunk)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            for answer in list(self._answers):
                self._check(answer, now)

    def _check(self, answer: Answer, now: float) -> None:
        settings = self._settings
        if answer.blocked_since and now - answer.blocked_since > settings.slow_client_timeout:
            answer.cancel(ApiError(503, "the client reads too slowly", code="slow_client"))
            answer.drop()
        if now - answer.opened > settings.queue_timeout and not answer.started:
            message = f"no slot was free for {settings.queue_timeout:g} seconds"
            after = settings.retry_after
            answer.cancel(ApiError(503, message, code="server_overloaded", retry_after=after))
        elif answer.streamed and 0 < settings.sse_ping_interval < now - answer.written:
            answer.ping()

    def _closed(self) -> ApiError:
        after = self._settings.retry_after
        return ApiError(503, "the server is closing", code="server_closing", retry_after=after)
