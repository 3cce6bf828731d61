"""SlotInfo: the current state of a slot."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec._native.engine.slot import Slot
from ngramspec.engine.generation import Generation


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """The current state of a slot, for monitoring."""

    id: int
    # "idle", "prompt", "decode", or "preempted": its request waits until the cache has room again
    state: str
    request_id: str  # of the running or the last request, "" before the first
    request_number: int  # how many requests were submitted before the running one; -1 = it is idle
    num_prompt: int
    num_cached: int  # of these found in the cache
    num_tokens: int  # prompt and emitted tokens it holds
    num_past: int  # of these in the key-value cache
    num_emitted: int
    num_remaining: int  # tokens that it may still emit; -1 = no bound
    speculative: bool
    num_draft_tokens: int
    num_accepted_tokens: int
    # why requests wait although this slot is idle, or a request in it although it has a slot
    waits_for: str = ""


def slot_info(slot: Slot, request_id: str, waits_for: str = "") -> SlotInfo:
    """Return the current state of a slot.

    Args:
        slot: The slot.
        request_id: Of the request that was started on it last.
        waits_for: The room in the cache that the next request needs.
    """
    generation = slot.generation
    state = "idle" if generation is None else "decode" if slot.decoding else "prompt"
    state = "preempted" if slot.preempted else state
    timings = None if generation is None else generation.timings
    return SlotInfo(
        slot.id,
        state,
        request_id if generation is None else generation.request.id,
        -1 if generation is None else generation.number,
        slot.num_prompt,
        0 if timings is None else timings.num_cached,
        slot.length,
        slot.num_past,
        0 if generation is None else generation.num_tokens,
        -1 if generation is None else _remaining(generation),
        bool(slot.sources),
        0 if timings is None else timings.num_draft_tokens,
        0 if timings is None else timings.num_accepted_tokens,
        waits_for if state in ("idle", "preempted") else "",
    )


def _remaining(generation: Generation) -> int:
    most = generation.request.max_tokens
    return -1 if most < 0 else most - generation.num_tokens
