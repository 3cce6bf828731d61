"""What a response reports about cost and drafts: timings, and further members of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation


def timings_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """Return llama-server's timings; for several generations, summed counts and longest times."""
    all_timings = [made.timings for made in generations]
    cached = sum(t.num_cached for t in all_timings)
    prompt = sum(t.num_prompt - t.num_cached for t in all_timings)
    predicted = sum(made.num_tokens for made in generations)
    # The first token of an answer comes from the prompt's decode.
    steps = sum(max(0, made.num_tokens - 1) for made in generations)
    prompt_ms = 1e3 * max(t.prompt_seconds for t in all_timings)
    predicted_ms = 1e3 * max(t.decode_seconds for t in all_timings)
    made = {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _per(prompt_ms, prompt),
        "prompt_per_second": _per(1e3 * prompt, prompt_ms),
        "predicted_n": predicted,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": _per(predicted_ms, steps),
        "predicted_per_second": _per(1e3 * steps, predicted_ms),
    }
    drafted = sum(t.num_draft_tokens for t in all_timings)
    if drafted:
        made["draft_n"] = drafted
        made["draft_n_accepted"] = sum(t.num_accepted_tokens for t in all_timings)
    return made


def optional_members(chunk: Chunk, timings: bool, spans: bool) -> dict[str, Any]:
    """Return further members of a chunk's event.

    timings: Add llama-server's timings so far. spans: Add "speculative": the text in pieces, each
    with True if accepted draft tokens made it, and the number of accepted tokens. A chunk with the
    progress of the prompt has "prompt_progress" besides.
    """
    made: dict[str, Any] = {}
    if chunk.progress is not None:
        total, cached, processed, seconds = chunk.progress
        made["prompt_progress"] = {
            "total": total,
            "cache": cached,
            "processed": processed,
            "time_ms": int(1e3 * seconds),
        }
    if timings:
        made["timings"] = timings_of([chunk.generation])
    if spans:
        pieces = [[text, accepted] for text, accepted in chunk.spans]
        made["speculative"] = {"accepted": chunk.num_accepted, "spans": pieces}
    return made


def _per(amount: float, count: float) -> float:
    return round(amount / count, 6) if count else 0.0
