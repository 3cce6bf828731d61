"""Schedule: which slot gets which request, and which tokens go into the next decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.engine.request import Request
from ngramspec.engine.slot import Slot

SIMILAR = 10  # a prompt shares its 1/SIMILAR with a slot to be sent there
WORTH_COPYING = 32  # tokens that another slot must have in common beyond the slot's own


@dataclass(slots=True)
class Work:
    """A slot's part of a decode: `count` pending tokens, with output when they are its last."""

    slot: Slot
    count: int

    @property
    def output(self) -> bool:
        """Tell whether a token is chosen after it."""
        return self.count == self.slot.num_pending


def plan(slots: Sequence[Slot], capacity: int) -> list[Work]:
    """Return what each running slot decodes next, drafts not yet counted.

    Decoding slots come first; where their texts must be read again they share the capacity. Prompts
    get the rest in the order of their arrival.
    """
    work, prompts, room = [], [], capacity
    for slot in slots:
        if slot.decoding:
            work.append(Work(slot, slot.length - slot.num_past))
            room -= work[-1].count
        else:
            prompts.append(slot)
    if room < 0:  # texts that must be read again may be long
        room = 0
        for item, count in zip(work, share([item.count for item in work], capacity), strict=True):
            item.count = count
    for slot in sorted(prompts, key=lambda s: s.used):
        count = min(slot.num_pending, room)
        if count:
            work.append(Work(slot, count))
            room -= count
    return work


def draft_room(work: Sequence[Work], capacity: int) -> int:
    """Return how many draft tokens fit beside the work; prompts give way to a quarter of it."""
    rows = sum(item.count for item in work if item.slot.decoding)
    prompts = sum(item.count for item in work) - rows
    room = capacity - rows - min(prompts, capacity * 3 // 4)
    return max(0, room)


def shrink_prompts(work: list[Work], capacity: int) -> None:
    """Cut the prompts of the work, the latest first, so that it fits beside the drafts."""
    excess = sum(item.count + item.slot.draft.size for item in work) - capacity
    for item in reversed(work):
        if excess <= 0:
            break
        if not item.slot.decoding:
            cut = min(excess, item.count)
            item.count -= cut
            excess -= cut
    work[:] = [item for item in work if item.count]


def share(wanted: Sequence[int], room: int) -> list[int]:
    """Share room among claims: every claim up to the same level is met, larger ones are cut to it.

    >>> share([8, 2, 8], 12)
    [5, 2, 5]
    """
    if sum(wanted) <= room:
        return list(wanted)
    given = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    left = len(order)
    for i in order:
        given[i] = min(wanted[i], room // left)
        room -= given[i]
        left -= 1
    return given


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
