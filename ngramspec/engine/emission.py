"""Emission: turns the tokens of a step into text, chunks and figures, and ends generations."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ngramspec._native.engine.decode import Rows
from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.slot import Slot
from ngramspec._native.engine.transcript import END_TOKEN, FULL, GOES_ON, IMPOSSIBLE, STOP_TEXT
from ngramspec.engine.generation import Chunk, FinishReason, Generation, Progress, TokenLogprob
from ngramspec.engine.queue import OnChunk
from ngramspec.errors import InputError

log = logging.getLogger(__name__)

REASONS: dict[int, FinishReason | None] = {
    GOES_ON: None,
    END_TOKEN: "stop",
    STOP_TEXT: "stop",
    FULL: "length",
    IMPOSSIBLE: "stop",  # at the end of a grammar; an error elsewhere
}
NO_TOKEN = (
    "the answer breaks off: its grammar and biases leave no token possible, or the model's logits "
    "are no numbers"
)


class Emission:
    """Ends generations and hands out chunks.

    Args:
        rows: Logits of the last decode, for log-probabilities.
        stats: Counters.
        release: Frees a slot; called before the end of its generation becomes visible.
    """

    def __init__(
        self,
        rows: Rows,
        stats: EngineStats,
        release: Callable[[Slot], None],
    ) -> None:
        self._rows = rows
        self._stats = stats
        self._release = release

    def emit(self, slot: Slot) -> None:
        """Hand out what a step added to the slot's generation, and end it where the step did."""
        generation, on_chunk = slot.generation, slot.on_chunk
        assert generation is not None
        reason, count, error = REASONS[slot.ending], slot.num_added, None
        if slot.ending == IMPOSSIBLE and slot.sampler is not None:
            problem = slot.sampler.problem or ("" if slot.sampler.may_end else NO_TOKEN)
            if problem:
                reason, error = "error", InputError(problem)
        with_logprobs = generation.request.logprobs is not None
        first = len(generation.logprobs)
        if with_logprobs:
            ended = slot.ending == END_TOKEN and generation.request.prompt_logprobs is not None
            self._add_logprobs(slot, generation, slot.emitted[: count + ended].tolist())
        if reason is not None:
            self._release(slot)
        if on_chunk is None:
            if reason is not None:
                generation.transcript.take(True)
                self._finish(generation, reason, error)
            return
        spans = generation.transcript.take(reason is not None)
        if reason is not None:
            self._finish(generation, reason, error)
        emitted, accepted = tuple(slot.emitted[:count].tolist()), slot.num_credited
        logprobs = tuple(generation.logprobs[first:])
        text = "".join(piece for piece, _ in spans)
        _hand_out(on_chunk, Chunk(generation, emitted, accepted, text, spans, logprobs, reason))

    def progress(self, slot: Slot) -> None:
        """Hand out how much of the slot's prompt is read, if its request wants to know."""
        generation, on_chunk = slot.generation, slot.on_chunk
        if on_chunk is None or not generation.request.progress:
            return
        timings = generation.timings
        seconds = time.perf_counter() - timings.started
        progress = Progress(timings.num_prompt, timings.num_cached, slot.num_past, seconds)
        _hand_out(on_chunk, Chunk(generation, (), 0, "", (), (), None, progress))

    def end(
        self,
        generation: Generation,
        on_chunk: OnChunk | None,
        reason: FinishReason,
        error: Exception | None = None,
    ) -> None:
        """End a generation without further tokens; held-back text is handed out."""
        spans = generation.transcript.take(True)
        self._finish(generation, reason, error)
        if on_chunk is not None:
            text = "".join(piece for piece, _ in spans)
            _hand_out(on_chunk, Chunk(generation, (), 0, text, spans, (), reason))

    def _add_logprobs(self, slot: Slot, generation: Generation, emitted: Sequence[int]) -> None:
        """Add each token's log-probability in its row, or in what the sampler made of the row."""
        likeliest = min(generation.request.logprobs or 0, self._rows.vocab_size)
        for index, token in enumerate(emitted):
            if generation.request.post_sampling_probs:
                logprob, top = slot.logprobs(index)
            else:
                logprob, top = self._rows.logprobs(slot.row(index), token, likeliest)
            generation.logprobs.append(TokenLogprob(token, logprob, tuple(top)))

    def _finish(
        self, generation: Generation, reason: FinishReason, error: Exception | None
    ) -> None:
        generation.finish(reason, error)
        finished = self._stats.finished
        finished[reason] = finished.get(reason, 0) + 1
        timings = generation.timings
        self._stats.request_latency.observe(timings.finished - timings.submitted)


def _hand_out(on_chunk: OnChunk, chunk: Chunk) -> None:
    """Call a request's callback; if it raises, only that request ends."""
    try:
        on_chunk(chunk)
    except Exception:
        log.exception("on_chunk of request %s failed", chunk.generation.request.id)
        chunk.generation.cancel()
