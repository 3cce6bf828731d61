"""Answer: the generations of one response, from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ngramspec.server.errors import ApiError, api_error

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation, Timings
    from ngramspec.server.http.connections import Cause

log = logging.getLogger(__name__)

Item = tuple[int, "Chunk"]  # index of the generation in the answer, and a chunk of it


class Answer:
    """The generations of one response and their chunks that are not yet taken.

    Belongs to the event loop.

    generations: In the order of the choices; all are there once Bridge.open has returned, which
        adds them in a thread.
    name: What the client or a proxy calls its request, "" = nothing.
    failure: The error, None = none; with an error all generations are cancelled.
    cause: What cancelled them; known before their ends are delivered.
    """

    def __init__(self, *, streamed: bool, max_items: int, name: str = "") -> None:
        self.generations: list[Generation] = []
        self.streamed = streamed
        self.name = name
        self.failure: ApiError | None = None
        self.cause: Cause = "engine"  # of a cancellation that came from nowhere else
        self.opened = 0.0  # loop time of the start
        self.written = 0.0  # loop time of the last write, or of the start
        self.blocked_since = 0.0  # loop time since a write waits for the client, 0 = none waits
        self.ping_due = False
        self.drop: Callable[[], None] = _nothing  # closes the client's connection
        self._max_items = max_items
        self._items: deque[Item] = deque()
        self._num_ended = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> str:
        """Return the id of the request, by which client and log know it; "" if nothing runs."""
        return self.name or (self.generations[0].request.id if self.generations else "")

    @property
    def ended(self) -> bool:
        return self._num_ended == len(self.generations)

    @property
    def started(self) -> bool:
        """Return whether a generation was given a slot."""
        return any(generation.timings.started for generation in self.generations)

    def deliver(self, index: int, chunk: Chunk) -> None:
        reason = chunk.finish_reason
        if reason is not None:
            self._num_ended += 1
            if reason in ("error", "cancelled"):
                cause: Cause = "error" if reason == "error" else self.cause  # of the others' end
                self.cancel(_failure(chunk.generation), cause)
                return
        if self.failure is None:
            self._items.append((index, chunk))
            if len(self._items) > self._max_items:
                self.cancel_slow()
        self._wake()

    def cancel(self, failure: ApiError, cause: Cause) -> None:
        """Cancel all generations; `take` raises the failure after the chunks that came before.

        The first call says why; later ones change nothing.
        """
        if self.failure is None:
            self.failure, self.cause = failure, cause
        for generation in self.generations:
            generation.cancel()
        self._wake()

    def cancel_slow(self) -> None:
        failure = ApiError(503, "the client reads too slowly", code="slow_client")
        self.cancel(failure, "slow_client")

    def ping(self) -> None:
        """Make a waiting `take` return None."""
        self.ping_due = True
        self._wake()

    async def take(self) -> list[Item] | None:
        """Return the items since the last call, at least one; [] at the end, None for a ping.

        Raises:
            ApiError: The failure.
        """
        while not self._items:
            if self.failure is not None:
                raise self.failure
            if self.ended:
                return []
            if self.ping_due:
                self.ping_due = False
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        items = list(self._items)
        self._items.clear()
        return items

    async def finish(self) -> list[Generation]:
        """Wait for the end of all generations and return them.

        Raises:
            ApiError: The failure.
        """
        while await self.take() != []:
            pass
        return self.generations

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _nothing() -> None:
    pass


def _failure(generation: Generation) -> ApiError:
    if generation.error is not None:
        return api_error(generation.error)
    return ApiError(503, "the request was cancelled", code="cancelled", retry_after=1)


def log_end(generation: Generation, answer: Answer) -> None:
    """Log what a generation cost and why it ended, without a word of prompt or answer.

    Cost: some 10 us, nothing where the level is above INFO.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    timings = generation.timings
    waited = (timings.started or timings.finished) - timings.submitted
    log.info(
        "request %s: %s, %.0f ms and %.0f ms in the queue, prompt %d tokens (%d cached, %.1f/s), "
        "emitted %d (%.1f/s), drafted %d, accepted %d%s%s%s",
        generation.request.id,
        _reason(generation, answer),
        1e3 * (timings.finished - timings.submitted - waited),
        1e3 * waited,
        timings.num_prompt,
        timings.num_cached,
        _prompt_rate(timings),
        generation.num_tokens,
        generation.tokens_per_second,
        timings.num_draft_tokens,
        timings.num_accepted_tokens,
        _gain(timings.saved_seconds),
        f", key {generation.tenant}" if generation.tenant else "",
        f", x-request-id {answer.name}" if answer.name else "",
    )


def _prompt_rate(timings: Timings) -> float:
    """Return the tokens per second of the prompt; 0 if it was not read to its end."""
    if not (timings.first_token and timings.prompt_seconds):
        return 0.0
    return (timings.num_prompt - timings.num_cached) / timings.prompt_seconds


def _gain(seconds: float) -> str:
    """Return what drafts have saved, in words; nothing where none ran or nobody knows."""
    return f", drafts {'saved' if seconds > 0 else 'lost'} {abs(seconds):.2f} s" if seconds else ""


def _reason(generation: Generation, answer: Answer) -> str:
    if generation.finish_reason == "cancelled":
        return f"cancelled ({answer.cause})"
    if generation.error is not None:  # its text may quote the prompt
        return f"{generation.finish_reason} ({type(generation.error).__name__})"
    return str(generation.finish_reason)
