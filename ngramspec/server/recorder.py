"""Recorder: writes finished requests to a file, in a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ngramspec.lab.recordings.writer import RecordFile, TooLongError

if TYPE_CHECKING:
    from ngramspec.engine import DecisionTrace, Generation

log = logging.getLogger(__name__)
MOST_WAITING = 1024  # requests
MOST_TOKENS = 1 << 24  # of their prompts and answers, 64 MiB
CLOSE_SECONDS = 10.0
TRACE_SECONDS = 0.25  # between looks at decisions that wait: there is room for thousands
DROPS = ("queue", "long", "error")


class RecorderStats(NamedTuple):
    """What a Recorder did.

    dropped: by reason: "queue" (too many waited), "long" (longer than the file may be) and "error"
        (it could not be written).
    failing: whether the latest write failed.
    decisions: that were written, and dropped_decisions.
    """

    written: int
    num_bytes: int
    waiting: int
    dropped: Mapping[str, int]
    failing: bool
    decisions: int = 0
    dropped_decisions: int = 0


class Recorder:
    """Takes finished generations without waiting, and writes them in a thread.

    What exceeds the bounds of its queue is dropped and counted. A write that fails is logged once
    until one succeeds again; no request notices.

    Args:
        file: Closed by `close`.
        drafter: Names of what drafts for requests that ask for nothing else, with commas.
        most_waiting, most_tokens: Bounds of the queue.
        trace: Decisions on drafts, to be written beside the requests; None = none are.
    """

    def __init__(
        self,
        file: RecordFile,
        drafter: str,
        most_waiting: int = MOST_WAITING,
        most_tokens: int = MOST_TOKENS,
        trace: DecisionTrace | None = None,
    ) -> None:
        self._file, self.trace = file, trace
        self._default = () if drafter in ("", "none") else tuple(drafter.split(","))
        self._most_waiting, self._most_tokens = most_waiting, most_tokens
        self._queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        # Each number is written by one thread: the first row by the one that offers.
        self._offered = self._offered_tokens = self._refused = 0
        self._taken = self._taken_tokens = self._written = self._too_long = self._failed = 0
        self._decisions = self._dropped_decisions = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="ngramspec-record", daemon=True)
        self._thread.start()

    def offer(self, generation: Generation) -> None:
        """Take a finished generation, or drop it if too many wait; for one thread.

        Cost: about a microsecond.
        """
        if not generation.num_tokens:
            return
        size = generation.request.prompt_ids.size + generation.num_tokens
        waiting = self._offered - self._taken
        tokens = self._offered_tokens - self._taken_tokens
        if waiting >= self._most_waiting or (waiting and tokens + size > self._most_tokens):
            self._refused += 1
            return
        self._offered += 1
        self._offered_tokens += size
        self._queue.put(generation)

    def stats(self) -> RecorderStats:
        """Return what was done so far, from any thread."""
        drops = (self._refused, self._too_long, self._failed)
        return RecorderStats(
            self._written,
            self._file.num_bytes,
            self._offered - self._taken,
            dict(zip(DROPS, drops, strict=True)),
            self._failing,
            self._decisions,
            self._dropped_decisions + (self.trace.num_dropped if self.trace else 0),
        )

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Write what waits and close the file; False if that takes longer than `timeout`."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (generation := self._next()) is not None:
            size = generation.request.prompt_ids.size + generation.num_tokens
            self._write(generation)
            self._taken += 1
            self._taken_tokens += size
            del generation  # its prompt may be large
        self._file.close()

    def _next(self) -> Generation | None:
        """Return what was put into the queue; write decisions first, and while nothing comes."""
        if self.trace is None:
            return self._queue.get()
        while True:
            try:
                generation = self._queue.get(timeout=TRACE_SECONDS)
            except queue.Empty:
                self._write_decisions(self.trace)
            else:
                self._write_decisions(self.trace)
                return generation

    def _write_decisions(self, trace: DecisionTrace) -> None:
        for decision in trace.drain():
            try:
                written = self._try(partial(self._file.append_decisions, [decision]))
            except TooLongError:
                written = False
            self._decisions += written
            self._dropped_decisions += not written

    def _write(self, generation: Generation) -> None:
        def append() -> None:
            prompt_ids, output = generation.request.prompt_ids, generation.transcript.token_ids()
            self._file.append(generation.tenant, prompt_ids, output, self._facts(generation))

        try:
            written = self._try(append)
        except TooLongError:
            self._too_long += 1
            return
        self._written += written
        self._failed += not written

    def _try(self, write: Callable[[], None]) -> bool:
        """Write; what fails is logged once until something succeeds again.

        Raises:
            TooLongError: As RecordFile.append.
        """
        try:
            write()
        except TooLongError:
            raise
        except Exception as error:  # of any kind: the next request may be fine
            if not self._failing:
                log.error("requests are not recorded to %s: %s", self._file.path, error)
            self._failing = True
            return False
        if self._failing:
            log.warning("requests are recorded to %s again", self._file.path)
        self._failing = False
        return True

    def _facts(self, generation: Generation) -> dict[str, Any]:
        timings, speculation = generation.timings, generation.request.speculation
        ago = time.perf_counter() - timings.submitted
        started = timings.started or timings.finished
        facts: dict[str, Any] = {
            "time": round(time.time() - ago, 3),
            "finish": generation.finish_reason,
            "cached": timings.num_cached,
            "queue_ms": _ms(started - timings.submitted),
            "prompt_ms": _ms(timings.prompt_seconds),
            "decode_ms": _ms(timings.decode_seconds),
            "passes": timings.num_steps,
            "drafted": timings.num_draft_tokens,
            "accepted": timings.num_accepted_tokens,
        }
        names = speculation.drafters(self._default)
        if names != self._default:
            facts["drafter"] = ",".join(names) or "none"
        return facts


def _ms(seconds: float) -> float:
    return round(1e3 * max(0.0, seconds), 3)
