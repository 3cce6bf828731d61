"""Emission: from the tokens of a step to text, limits, chunks and figures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ngramspec._rows import Rows
from ngramspec.engine.figures import EngineStats
from ngramspec.engine.generation import Chunk, FinishReason, Generation, TokenLogprob
from ngramspec.engine.queue import OnChunk
from ngramspec.engine.slot import Slot
from ngramspec.engine.text import TextStream

log = logging.getLogger(__name__)


class Emission:
    """Adds emitted tokens to generations and hands out chunks.

    Args:
        piece: Text of a token in UTF-8, special ones only when asked.
        ends: Tokens that end a generation.
        rows: Logits of the last decode, for log-probabilities.
        stats: Counters.
        release: Frees a slot; called before anyone learns that its generation has ended.
    """

    def __init__(
        self,
        piece: Callable[[int, bool], bytes],
        ends: frozenset[int],
        rows: Rows,
        stats: EngineStats,
        release: Callable[[Slot], None],
    ) -> None:
        self._piece = piece
        self._ends = ends
        self._rows = rows
        self._stats = stats
        self._release = release

    def emit(self, slot: Slot, tokens: Sequence[int], num_accepted: int, impossible: bool) -> None:
        """Emit a step's tokens, and end the generation where they end it.

        impossible: No token was possible after these, as at the end of a grammar.
        """
        made = slot.generation
        assert made is not None
        before = len(made.token_ids)
        reason = self._add(made, slot, tokens, num_accepted)
        if reason is None and impossible:
            reason = "stop"
        if reason is None and slot.length >= slot.tokens.size:
            reason = "length"
        self._time(made, len(made.token_ids) - before)
        if made.request.logprobs is not None:
            self._add_logprobs(made, slot.first_row, before)
        spans = slot.text.take(reason is not None)
        text = "".join(piece for piece, _ in spans)
        made.add_text(text)
        on_chunk = slot.on_chunk
        if reason is not None:
            made.stop_text = slot.text.stop_text
            self._release(slot)
            self._finish(made, reason, None)
        if on_chunk is not None:
            emitted = tuple(made.token_ids[before:])
            logprobs = tuple(made.logprobs[before:])
            accepted = min(num_accepted, len(emitted))
            chunk = Chunk(made, emitted, accepted, text, spans, logprobs, reason)
            _hand_out(on_chunk, chunk)

    def end(
        self,
        made: Generation,
        on_chunk: OnChunk | None,
        reason: FinishReason,
        error: Exception | None = None,
        text: TextStream | None = None,
    ) -> None:
        """End a generation without further tokens; what its text held back comes now."""
        spans = () if text is None else text.take(True)
        rest = "".join(piece for piece, _ in spans)
        made.add_text(rest)
        self._finish(made, reason, error)
        if on_chunk is not None:
            _hand_out(on_chunk, Chunk(made, (), 0, rest, spans, (), reason))

    def _add(
        self, made: Generation, slot: Slot, tokens: Sequence[int], num_accepted: int
    ) -> FinishReason | None:
        request, feed = made.request, slot.text.feed
        most = request.max_tokens if request.max_tokens >= 0 else slot.tokens.size
        for index, token in enumerate(tokens):
            if len(made.token_ids) >= most:
                return "length"
            if token in self._ends:
                return "stop"
            made.token_ids.append(token)
            made.accepted.append(index < num_accepted)
            if feed(self._piece(token, request.special), index < num_accepted):
                return "stop"
        return "length" if len(made.token_ids) >= most else None

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

    def _add_logprobs(self, made: Generation, first_row: int, before: int) -> None:
        """Add what the target's softmax says of each token, from the row that it was chosen in."""
        likeliest = min(made.request.logprobs or 0, self._rows.vocab_size)
        for index, token in enumerate(made.token_ids[before:]):
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
