"""SlotInfo: the current state of a slot."""

from __future__ import annotations

from dataclasses import dataclass

from ngramspec._native.engine.slot import Slot


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """The current state of a slot, for monitoring."""

    id: int
    state: str  # "idle", "prompt" or "decode"
    request_id: str  # of the running or the last request
    num_prompt: int
    num_tokens: int  # prompt and emitted tokens it holds
    num_past: int  # of these in the key-value cache
    num_emitted: int
    speculative: bool
    num_draft_tokens: int
    num_accepted_tokens: int


def slot_info(slot: Slot) -> SlotInfo:
    """Return the current state of a slot."""
    made = slot.generation
    state = "idle" if made is None else "decode" if slot.decoding else "prompt"
    timings = None if made is None else made.timings
    return SlotInfo(
        slot.id,
        state,
        "" if made is None else made.request.id,
        slot.num_prompt,
        slot.length,
        slot.num_past,
        0 if made is None else made.num_tokens,
        bool(slot.sources),
        0 if timings is None else timings.num_draft_tokens,
        0 if timings is None else timings.num_accepted_tokens,
    )
