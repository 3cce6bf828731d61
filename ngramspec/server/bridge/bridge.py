"""Bridge: hands requests to the engine and carries chunks from its thread to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ngramspec.errors import GrammarError, InputError
from ngramspec.server.bridge.answer import Answer, log_end
from ngramspec.server.bridge.intake import Incoming, Intake, Plan
from ngramspec.server.errors import ApiError
from ngramspec.server.http.connections import Cause, ClientGone, Traffic
from ngramspec.text.structured.guidance import GrammarText

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Engine, Generation, Request
    from ngramspec.engine.queue import OnChunk
    from ngramspec.server.settings import ServerSettings

log = logging.getLogger(__name__)
CHECK_SECONDS = 0.5  # between two checks of waiting and blocked answers
MOST_BETWEEN = 2.0  # seconds between two looks that count; in the rest the process was paused


P = TypeVar("P", bound=Plan)


class Bridge:
    """Between the engine's thread and one event loop.

    A step of the engine wakes the loop at most once, however many answers get a chunk in it. An
    answer that is not streamed wakes it only when it ends.

    Args:
        engine: What an EngineThread runs.
        settings: The server's.
        on_end: Called in the event loop with every generation that has ended.

    intake: What is done for a request before it is the engine's turn.
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
        self.intake = Intake(max_bytes=4 * settings.max_body_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: deque[tuple[Answer, int, Chunk]] = deque()
        self._woken = False
        self._answers: set[Answer] = set()
        self.traffic = Traffic()
        self.watch = EngineWatch(engine, settings.stall_timeout)

    async def open(self, plan: Callable[[Incoming], P], incoming: Incoming) -> tuple[P, Answer]:
        """Make a plan and submit its requests, both in a thread: that can take milliseconds.

        Raises:
            ApiError: The request is refused; nothing runs.
            ClientGone: The client left; nothing is submitted any more.
        """
        self._loop = asyncio.get_running_loop()
        most = self._settings.max_buffered_chunks
        answer = Answer(streamed=False, max_items=most, name=incoming.name)
        arrived = self._engine.announce()

        def submit(incoming: Incoming) -> P:
            try:
                if self.watch.trouble:
                    raise self._failed()
                request_plan = plan(incoming)
                answer.streamed = request_plan.stream
                self._submit(request_plan.requests, answer, incoming.tenant)
                return request_plan
            finally:
                arrived()  # before the event loop has its turn

        try:
            request_plan = await self.intake.run(submit, incoming)
        except (ClientGone, asyncio.CancelledError):
            answer.cancel(ClientGone(), "client")
            raise
        finally:
            arrived()  # also when its turn never came
        answer.opened = answer.written = self._loop.time()
        self._answers.add(answer)
        return request_plan, answer

    def close(self, answer: Answer) -> None:
        """Forget an answer; cancel what still runs of it."""
        self._answers.discard(answer)
        if not answer.ended:
            answer.cancel(ClientGone(), "client")

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
            if not self.intake.finish():
                log.warning("a request is still being prepared")

    # -- in a worker thread ------------------------------------------------------------------------

    def _submit(self, requests: Sequence[Request], answer: Answer, tenant: str) -> None:
        """Submit all requests of an answer, or none.

        Raises:
            NgramspecError: A request is refused; those submitted are cancelled.
            ClientGone: The client left.
        """
        try:
            for index, request in enumerate(requests):
                if answer.failure is not None:
                    raise ClientGone
                with _naming_field(request.sampling.grammar):
                    receiver = self.receiver(answer, index)
                    answer.generations.append(self._engine.submit(request, receiver, tenant))
            if answer.failure is not None:
                raise ClientGone
        except BaseException:
            if answer.failure is None:
                answer.cause = "error"
            for generation in answer.generations:
                generation.cancel()
            raise

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
