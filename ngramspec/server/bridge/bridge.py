"""Bridge: hands requests to the engine and carries chunks from its thread to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from ngramspec.errors import InputError, NgramspecError
from ngramspec.server.bridge.answer import Answer, log_end
from ngramspec.server.bridge.preparation import Preparation
from ngramspec.server.errors import ApiError, api_error, bad_request
from ngramspec.server.http.client_gone import ClientGone
from ngramspec.server.traffic import Cause, Traffic
from ngramspec.text.structured import GrammarError
from ngramspec.text.structured.gbnf import GrammarText

if TYPE_CHECKING:
    from starlette.types import Receive

    from ngramspec.engine import Chunk, Engine, Generation, Request
    from ngramspec.engine.queue import OnChunk
    from ngramspec.server.settings import ServerSettings

log = logging.getLogger(__name__)
CHECK_SECONDS = 0.5  # between two checks of waiting and blocked answers
MOST_BETWEEN = 2.0  # seconds between two looks that count; in the rest the process was paused


class RequestPlan(Protocol):
    """The engine requests that a route made from a body."""

    @property
    def requests(self) -> Sequence[Request]:
        """Return one request per choice."""

    @property
    def stream(self) -> bool:
        """Return whether the client wants a stream."""


P = TypeVar("P", bound=RequestPlan)
T = TypeVar("T")


class Bridge:
    """Between the engine's thread and one event loop.

    A step of the engine wakes the loop at most once, however many answers get a chunk in it. An
    answer that is not streamed wakes it only when it ends.

    Args:
        engine: What an EngineThread runs.
        settings: The server's.
        on_end: Called in the event loop with every generation that has ended.

    traffic: Counts what this app's clients were refused, and why requests were cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        on_end: Callable[[Generation], object] = lambda generation: None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._on_end = on_end
        self._preparation = Preparation(max_bytes=4 * settings.max_body_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: deque[tuple[Answer, int, Chunk]] = deque()
        self._woken = False
        self._answers: set[Answer] = set()
        self._closing = False
        self.traffic = Traffic()
        self.watch = EngineWatch(engine, settings.stall_timeout)

    async def open(
        self,
        prepare: Callable[[], P],
        receive: Receive,
        size: int,
        tenant: str = "",
        name: str = "",
    ) -> tuple[P, Answer]:
        """Prepare requests and submit them, both in a thread: that can take milliseconds.

        Args:
            prepare: Makes the plan.
            receive: The connection's; nothing is submitted for a client that has left.
            size: Bytes of the body.
            tenant: Who asks, as for Engine.submit.
            name: What the client calls its request, for the log.

        Raises:
            ApiError: The request is refused; nothing runs.
        """
        self._loop = asyncio.get_running_loop()
        arrived = self._engine.announce()
        opening = _Opening(tenant)
        try:
            plan, answer = await self.prepare(
                lambda: self._open(prepare, arrived, opening, name),
                receive,
                size,
                tenant,
                opening.abandon,
            )
        finally:
            arrived()  # also when its turn never came
        answer.opened = answer.written = self._loop.time()
        self._answers.add(answer)
        return plan, answer

    async def prepare(
        self,
        work: Callable[[], T],
        receive: Receive,
        size: int,
        tenant: str = "",
        abandon: Callable[[Future[T]], None] = lambda future: None,
    ) -> T:
        """Run work() in a thread and return its result; arguments as for Preparation.run.

        Raises:
            ApiError: The work failed, or there is no room for it.
            ClientGone: The client left.
        """
        run = self._preparation.run
        try:
            return await run(work, size=size, tenant=tenant, receive=receive, abandon=abandon)
        except NgramspecError as error:
            raise api_error(error, self._settings.retry_after) from error
        except RecursionError as error:
            raise bad_request("the body is nested too deep") from error

    async def finish(self, work: Callable[[], T]) -> T:
        """Run work(), the end of an answer, in a thread and return its result.

        That is not one of the threads that prepare requests: at shutdown those end first, and
        running answers go on to their end.
        """
        return await asyncio.to_thread(work)

    def close(self, answer: Answer) -> None:
        """Forget an answer; cancel what still runs of it."""
        self._answers.discard(answer)
        if not answer.ended:
            answer.cancel(ClientGone(), "client")

    def refuse(self) -> None:
        """Take no more requests."""
        self._closing = True
        self._preparation.close()

    def join(self) -> None:
        """Wait for requests that are being prepared, after `refuse`, however long they take."""
        self._preparation.join()

    def cancel_all(self) -> None:
        """Cancel all answers, at shutdown."""
        self._cancel_all(self._closed(), "shutdown")

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Check waiting answers at intervals while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if not self._preparation.finish():
                log.warning("a request is still being prepared")

    # -- in a worker thread ------------------------------------------------------------------------

    def _open(
        self, prepare: Callable[[], P], arrived: Callable[[], None], opening: _Opening, name: str
    ) -> tuple[P, Answer]:
        try:
            if self._closing:
                raise self._closed()
            if self.watch.trouble:
                raise self._failed()
            plan = prepare()
            most = self._settings.max_buffered_chunks
            answer = Answer(streamed=plan.stream, max_items=most, name=name)
            opening.submit(self._engine, plan.requests, answer, self.receiver)
            return plan, answer
        finally:
            arrived()  # before the event loop has its turn

    def receiver(self, answer: Answer, index: int) -> OnChunk:
        """Return the callback that the engine's thread calls with every chunk of a generation."""

        def receive(chunk: Chunk) -> None:
            if not answer.streamed and chunk.finish_reason is None:
                return
            self._arrived.append((answer, index, chunk))
            if not self._woken:
                self._woken = True
                assert self._loop is not None
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody will read
                    self._loop.call_soon_threadsafe(self._deliver)

        return receive

    # -- in the event loop -------------------------------------------------------------------------

    def _deliver(self) -> None:
        self._woken = False  # reset before the queue is read, so that later chunks wake again
        arrived = self._arrived
        while arrived:
            answer, index, chunk = arrived.popleft()
            answer.deliver(index, chunk)
            if chunk.finish_reason is not None:
                self._note_end(answer, chunk.generation)

    def _note_end(self, answer: Answer, generation: Generation) -> None:
        """Count, log and hand on a generation that has ended."""
        if generation.finish_reason == "cancelled":
            self.traffic.cancelled[answer.cause] += 1
        self._on_end(generation)
        log_end(generation, answer)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            try:
                if self.watch.look(now):
                    self._cancel_all(self._failed(), "engine")
                for answer in list(self._answers):
                    self._check(answer, now)
            except Exception:  # keep watching
                log.exception("checking the answers failed")

    def _check(self, answer: Answer, now: float) -> None:
        settings = self._settings
        if answer.blocked_since and now - answer.blocked_since > settings.slow_client_timeout:
            answer.cancel_slow()
            answer.drop()
        if now - answer.opened > settings.queue_timeout and not answer.started:
            message = f"no slot was free for {settings.queue_timeout:g} seconds"
            after = settings.retry_after
            failure = ApiError(503, message, code="server_overloaded", retry_after=after)
            answer.cancel(failure, "queue_timeout")
        elif answer.streamed and 0 < settings.sse_ping_interval < now - answer.written:
            answer.ping()

    def _cancel_all(self, error: ApiError, cause: Cause) -> None:
        for answer in list(self._answers):
            answer.cancel(error, cause)

    def _failed(self) -> ApiError:
        after = self._settings.retry_after
        return ApiError(503, self.watch.trouble, code="engine_failed", retry_after=after)

    def _closed(self) -> ApiError:
        after = self._settings.retry_after
        return ApiError(503, "the server is closing", code="server_closing", retry_after=after)


class _Opening:
    """Submits the requests of an answer in a thread, as long as somebody waits for it."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._gone = False

    def submit(
        self,
        engine: Engine,
        requests: Sequence[Request],
        answer: Answer,
        receiver: Callable[[Answer, int], OnChunk],
    ) -> None:
        """Submit all requests of an answer, or none.

        Raises:
            NgramspecError: A request is refused; those submitted are cancelled.
            ClientGone: The client left.
        """
        try:
            for index, request in enumerate(requests):
                if self._gone:
                    raise ClientGone
                with _naming_field(request.sampling.grammar):
                    generation = engine.submit(request, receiver(answer, index), self._tenant)
                answer.generations.append(generation)
        except BaseException as error:
            answer.cause = "client" if isinstance(error, ClientGone) else "error"
            for generation in answer.generations:
                generation.cancel()
            raise

    def abandon(self, future: Future[tuple[P, Answer]]) -> None:
        """Cancel what was submitted, and submit no more: the client left."""
        self._gone = True
        future.add_done_callback(_cancel)


@contextlib.contextmanager
def _naming_field(grammar: str) -> Iterator[None]:
    """Let errors of a grammar name the field that it was made of: the client sent no grammar."""
    try:
        yield
    except InputError as error:
        field = grammar.field if isinstance(grammar, GrammarText) else ""
        if field and str(error).startswith("the grammar"):
            raise GrammarError(f"{field}: {error}", field) from error
        raise


def _cancel(future: Future[tuple[P, Answer]]) -> None:
    """Cancel the generations of an answer that nobody takes."""
    if not future.cancelled() and future.exception() is None:
        answer = future.result()[1]
        answer.cause = "client"
        for generation in answer.generations:
            generation.cancel()


class EngineWatch:
    """Looks at the engine's beats. Belongs to the event loop.

    Only time in which the watch itself runs counts, so after a stop of the process or a sleep of
    the machine nothing seems to hang.

    Args:
        engine: The engine that an EngineThread runs.
        patience: Seconds without a beat after which a step counts as hanging; 0 = never.

    trouble: What is wrong, "" while all is well.
    lost: The engine will not recover: its thread has ended, or hung for twice the patience.
    """

    def __init__(self, engine: Engine, patience: float) -> None:
        self.trouble = ""
        self.lost = False
        self._engine = engine
        self._patience = patience
        self._beats = -1
        self._silent = 0.0  # seconds since the last beat that was seen
        self._looked = 0.0

    def look(self, now: float) -> str:
        """Return the trouble at a time of the loop's clock."""
        passed, self._looked = min(now - self._looked, MOST_BETWEEN), now
        failure, beats = self._engine.failure, self._engine.beats
        if failure is not None:
            self.trouble = f"the engine's thread has ended: {type(failure).__name__}"
            self.lost = True
        elif beats != self._beats:
            self._beats, self._silent = beats, 0.0
            self.trouble = ""
        else:
            self._silent += passed
            if 0 < self._patience < self._silent:
                self.trouble = f"a step of the engine hangs for {self._silent:.0f} seconds"
                self.lost = self._silent > 2 * self._patience
        return self.trouble
