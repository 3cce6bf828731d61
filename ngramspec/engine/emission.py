"""Emission: from the tokens of a step to text, limits, chunks and figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ngramspec._rows import Rows
from ngramspec._transcript import END_TOKEN, FULL, GOES_ON, STOP_TEXT
from ngramspec.engine.figures import EngineStats
from ngramspec.engine.generation import Chunk, FinishReason, Generation, TokenLogprob
from ngramspec.engine.queue import OnChunk
from ngramspec.engine.request import TokenIds
from ngramspec.engine.slot import Slot

log = logging.getLogger(__name__)

REASONS: dict[int, FinishReason | None] = {
    GOES_ON: None,
    END_TOKEN: "stop",
    STOP_TEXT: "stop",
    FULL: "length",
}


class Emission:
    """Adds emitted tokens to generations and hands out chunks.

    Args:
        rows: Logits of the last decode, for log-probabilities.
        stats: Counters.
        release: Frees a slot; called before anyone learns that its generation has ended.
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

    def emit(self, slot: Slot, tokens: TokenIds, num_accepted: int, impossible: bool) -> None:
        """Emit a step's tokens, and end the generation where they end it.

        impossible: No token was possible after these, as at the end of a grammar.
        """
        made, on_chunk, first_row = slot.generation, slot.on_chunk, slot.first_row
        assert made is not None
        transcript = made.transcript
        before = len(transcript)
        reason = REASONS[transcript.feed(tokens, num_accepted)]
        if reason is None and impossible:
            reason = "stop"
        if reason is None and slot.length >= slot.tokens.size:
            reason = "length"
        count = len(transcript) - before
        self._time(made, count)
        emitted = tokens[:count].tolist() if on_chunk or made.request.logprobs is not None else ()
        if made.request.logprobs is not None:
            self._add_logprobs(made, first_row, emitted)
        spans = transcript.take(reason is not None)
        if reason is not None:
            self._release(slot)
            self._finish(made, reason, None)
        if on_chunk is not None:
            accepted, logprobs = min(num_accepted, count), tuple(made.logprobs[before:])
            text = "".join(piece for piece, _ in spans)
            _hand_out(
                on_chunk, Chunk(made, tuple(emitted), accepted, text, spans, logprobs, reason)
            )

    def end(
        self,
        made: Generation,
        on_chunk: OnChunk | None,
        reason: FinishReason,
        error: Exception | None = None,
    ) -> None:
        """End a generation without further tokens; what its text held back comes now."""
        spans = made.transcript.take(True)
        self._finish(made, reason, error)
        if on_chunk is not None:
            text = "".join(piece for piece, _ in spans)
            _hand_out(on_chunk, Chunk(made, (), 0, text, spans, (), reason))

    def _time(self, made: Generation, count: int) -> None:
        timings, stats, now = made.timings, self._stats, time.perf_counter()
        stats.num_emitted_tokens += count
        stats.num_slot_steps += 1
        timings.num_steps += 1
        if not timings.first_token:
            timings.first_token = now
            stats.time_to_first_token.observe(now - timings.submitted)
        elif count:
            stats.inter_token_latency.observe((now - timings.last_token) / count, count)
        timings.last_token = now

    def _add_logprobs(self, made: Generation, first_row: int, emitted: Sequence[int]) -> None:
        """Add what the target's softmax says of each token, from the row that it was chosen in."""
        likeliest = min(made.request.logprobs or 0, self._rows.vocab_size)
        for index, token in enumerate(emitted):
            logprob, top = self._rows.logprobs(first_row + index, token, likeliest)
            made.logprobs.append(TokenLogprob(token, logprob, tuple(top)))

    def _finish(self, made: Generation, reason: FinishReason, error: Exception | None) -> None:
        made.finish(reason, error)
        finished = self._stats.finished
        finished[reason] = finished.get(reason, 0) + 1
        self._stats.request_latency.observe(made.timings.finished - made.timings.submitted)


def _hand_out(on_chunk: OnChunk, chunk: Chunk) -> None:
    """Call a request's callback; one that raises ends its own request only."""
    try:
        on_chunk(chunk)
    except Exception:
        log.exception("on_chunk of request %s failed", chunk.generation.request.id)
        chunk.generation.cancel()
