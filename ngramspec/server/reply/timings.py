"""What a response reports about cost and drafts: timings, further members of events, reasoning."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ngramspec.server.model import ChatModel

if TYPE_CHECKING:
    from ngramspec.engine import Generation

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation


def timings_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """Return llama-server's timings; for several generations, summed counts and longest times."""
    all_timings = [generation.timings for generation in generations]
    cached = sum(t.num_cached for t in all_timings)
    prompt = sum(t.num_prompt - t.num_cached for t in all_timings)
    predicted = sum(generation.num_tokens for generation in generations)
    # The first token of an answer comes from the prompt's decode.
    steps = sum(max(0, generation.num_tokens - 1) for generation in generations)
    predicted_ms = round(1e3 * max(t.decode_seconds for t in all_timings), 3)
    return {
        **_prompt_timings(cached, prompt, max(t.prompt_seconds for t in all_timings)),
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _per(predicted_ms, steps),
        "predicted_per_second": _per(1e3 * steps, predicted_ms),
        **draft_counts(generations),
    }


def draft_counts(generations: Sequence[Generation]) -> dict[str, int]:
    """Return drafted and accepted tokens under llama-server's names; nothing without drafts."""
    all_timings = [generation.timings for generation in generations]
    drafted = sum(t.num_draft_tokens for t in all_timings)
    accepted = sum(t.num_accepted_tokens for t in all_timings)
    return {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}


def _prompt_timings(cached: int, read: int, seconds: float) -> dict[str, Any]:
    prompt_ms = round(1e3 * seconds, 3)
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _per(prompt_ms, read),
        "prompt_per_second": _per(1e3 * read, prompt_ms),
    }


def optional_members(chunk: Chunk, timings: bool, spans: bool) -> dict[str, Any]:
    """Return further members of a chunk's event.

    timings: Add llama-server's timings so far. spans: Add "speculative": the text in pieces, each
    with True if accepted draft tokens made it, and the number of accepted tokens. A chunk with the
    progress of the prompt has "prompt_progress" besides.
    """
    members: dict[str, Any] = {}
    if chunk.progress is not None:
        total, cached, processed, seconds = chunk.progress
        members["prompt_progress"] = {
            "total": total,
            "cache": cached,
            "processed": processed,
            "time_ms": int(1e3 * seconds),
        }
    if timings:
        members["timings"] = timings_of([chunk.generation])
    if timings and chunk.progress is not None:
        read = max(0, chunk.progress.processed - chunk.progress.cached)
        seconds = chunk.progress.seconds if read else 0.0
        members["timings"] |= _prompt_timings(chunk.progress.cached, read, seconds)
    if spans:
        pieces = [[text, accepted] for text, accepted in chunk.spans]
        members["speculative"] = {"accepted": chunk.num_accepted, "spans": pieces}
    return members


def _per(amount: float, count: float) -> float:
    return round(amount / count, 6) if count else 0.0


def reasoning_tokens(
    generation: Generation, thoughts: Sequence[tuple[int, int]], model: ChatModel
) -> int:
    """Return how many tokens of a finished answer hold reasoning or its marks.

    A token that holds the end of a mark and the begin of the answer counts, too. Where the model
    wrote bytes that are no UTF-8, the count may be off by as many tokens.

    Args:
        generation: The answer.
        thoughts: Where reasoning stood in its text, in order, as ChatParser has it.
        model: Has the bytes of the tokens.

    Cost: O(tokens of the answer), some tenths of a microsecond each; nothing is tokenized.
    """
    if not thoughts:
        return 0
    text, shown = generation.text, generation.request.special
    # where the bytes of each token end in the answer
    ends = list(accumulate(len(model.piece(token, shown)) for token in generation.token_ids))
    count = last = 0
    for start, end in thoughts:
        first = max(last, bisect_right(ends, len(text[:start].encode())))
        last = min(len(ends), bisect_left(ends, len(text[:end].encode())) + 1)
        count += max(0, last - first)
    return count
