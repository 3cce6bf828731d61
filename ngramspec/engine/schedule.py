"""Schedule: which slot gets which request."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ngramspec._native.engine.slot import Slot
from ngramspec.engine.request import Request

SIMILAR = 10  # a slot is chosen for its prefix if that is 1/SIMILAR of the prompt or more


def choose_slot(
    idle: Sequence[Slot], request: Request, neighbours: Collection[int] = ()
) -> tuple[Slot, int]:
    """Return the idle slot for a request and how many tokens of its prompt the slot holds.

    The slot with the longest common prefix, if that is a tenth of the prompt or more; otherwise the
    least recently used. Tokens of another namespace or computed with other adapters do not count,
    nor do any if the request wants to know how likely its prompt is.

    neighbours: Ids of slots that it should be adjacent to: without a common prefix, the slot that
        makes the fewest runs of consecutive ids comes first.
    """
    counts = {slot.id: _reusable(slot, request) for slot in idle}
    best = max(idle, key=lambda slot: counts[slot.id])
    if counts[best.id] * SIMILAR < request.prompt_ids.size:
        best = min(idle, key=lambda slot: (num_rows({slot.id, *neighbours}), slot.used))
    return best, counts[best.id]


def num_rows(ids: Collection[int]) -> int:
    """Return the number of runs of consecutive ids.

    >>> num_rows({0, 1, 3})
    2
    """
    return sum(one - 1 not in ids for one in ids)


def best_donor(slots: Sequence[Slot], chosen: Slot, request: Request, least: int) -> Slot | None:
    """Return the slot that holds most of the prompt, if that is `least` tokens or more."""
    best, most = None, least - 1
    for slot in slots:
        if slot is not chosen and (common := _reusable(slot, request)) > most:
            best, most = slot, common
    return best


def _reusable(slot: Slot, request: Request) -> int:
    if not request.cache_prompt or request.prompt_logprobs is not None:
        return 0  # what is in the cache has no logits
    if slot.namespace != request.speculation.namespace or slot.adapters != request.adapters:
        return 0
    return slot.common_prefix(request.prompt_ids)
