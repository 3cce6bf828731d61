"""Schedule: which slot gets which request."""

from __future__ import annotations

from collections.abc import Sequence

from ngramspec._slot import Slot
from ngramspec.engine.request import Request

SIMILAR = 10  # a prompt shares its 1/SIMILAR with a slot to be sent there
WORTH_COPYING = 32  # tokens that another slot must have in common beyond the slot's own


def choose_slot(idle: Sequence[Slot], request: Request) -> tuple[Slot, int]:
    """Return the idle slot for a request and how many tokens of its prompt the slot holds.

    The slot with the longest common prefix, where that is a tenth of the prompt or more; else the
    one that was not used for longest. What another namespace left in a slot does not count.
    """
    kept = {slot.id: _kept(slot, request) for slot in idle}
    best = max(idle, key=lambda slot: kept[slot.id])
    if kept[best.id] * SIMILAR < request.prompt_ids.size:
        best = min(idle, key=lambda slot: slot.used)
    return best, kept[best.id]


def _kept(slot: Slot, request: Request) -> int:
    if not request.cache_prompt or slot.namespace != request.speculation.namespace:
        return 0
    return slot.common_prefix(request.prompt_ids)


def best_donor(slots: Sequence[Slot], chosen: Slot, request: Request, kept: int) -> Slot | None:
    """Return a slot that holds so much more of the prompt that copying from it pays."""
    best, most = None, kept + WORTH_COPYING
    for slot in slots:
        if slot is not chosen and (common := _kept(slot, request)) > most:
            best, most = slot, common
    return best
