"""Sequences: what the target's cache holds for each slot, kept in step with the slots' texts.

And which slot gets which request, by what it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.figures import EngineStats
from ngramspec._native.engine.slot import Slot
from ngramspec.engine.preempted import Preempted
from ngramspec.engine.request import Request
from ngramspec.engine.target import Target
from ngramspec.errors import BackendError

# Most tokens to decode again together with a draft, after a checkpoint was restored; every
# rejected draft adds to them.
MOST_AGAIN = 8
SPARE = 4  # of a context, tokens that a shift may always discard or move, as in llama-server
NO_TOKEN = -1
SIMILAR = 10  # a slot is chosen for its prefix if that is 1/SIMILAR of the prompt or more


class Sequences:
    """Prefix reuse and rollback. If the target refuses an operation, the text is read again.

    Args:
        target: The model.
        slots: All slots of the engine; sequence ids are slot ids.
        stats: Counters.
        shifts: Whether full contexts shift.
        in_order: Whether the cache must hold a text in its order, or rounding would change.
    """

    def __init__(
        self,
        target: Target,
        slots: Sequence[Slot],
        stats: EngineStats,
        shifts: bool = False,
        in_order: bool = False,
    ) -> None:
        self._target = target
        self._slots = slots
        self._in_order = in_order
        self._min_copy = None if shifts and target.shares_copies else target.min_copy
        # Slots whose cache changes in the next decode: it copies keys, or turns them.
        self.unsettled: set[Slot] = set()
        self.num_failures = 0  # sequences emptied because tokens could not be taken back
        # Whether rejected tokens can be removed at all, how many, and by checkpoints only.
        limit = target.max_rollback
        self.can_reject = limit is None or limit > 0 or target.can_save
        self._max_draft = limit or None  # a checkpoint goes back any distance
        self.checkpoints = limit == 0 and target.can_save
        # Of slots whose first cells others use, too: by what copy it began, and how many cells.
        self._shared: dict[Slot, tuple[object, int]] = {}
        # Of slots whose targets dump a sliding window only: an earlier one, and its tokens' number.
        self.windows: dict[Slot, tuple[Any, int]] = {}
        self.preempted = Preempted(target, stats)

    @property
    def rollback(self) -> str:
        """Return how rejected tokens are taken back, as Drafting calls it."""
        if self._target.max_rollback is None:
            return "cache"
        return "saved" if self.checkpoints else "snapshots" if self.can_reject else "none"

    def begin(self, slot: Slot, request: Request, held: int) -> int:
        """Make the slot hold a request's prompt; return how many tokens need not be read again.

        held: Tokens of the prompt that the slot's sequence holds.
        """
        prompt = request.prompt_ids
        size = int(prompt.size)
        donor = self._donor(slot, request, held)
        if donor is not None:
            held = min(donor.common_prefix(prompt), size - 1)
            self.cut(slot, 0)
            self._target.copy(donor.id, slot.id, held)
            self.unsettled.add(slot)
            slot.num_past = held
            if self._target.shares_copies:
                root, count = self._shared.get(donor, (object(), 0))
                self._shared[donor] = root, max(count, held)
                self._shared[slot] = root, held
        self.cut(slot, min(held, size - 1))  # the last token gives the first logits
        slot.num_reusable = slot.size
        slot.tokens[:size] = prompt
        slot.length = slot.num_prompt = size
        slot.namespace, slot.adapters = request.speculation.namespace, request.adapters
        return slot.num_past

    def new_cells(self, slot: Slot, request: Request, held: int) -> int:
        """Return how many cells `begin` takes for a prompt beside those that running requests use.

        Arguments as begin.
        """
        donor = self._donor(slot, request, held)
        size = int(request.prompt_ids.size)
        if donor is None or donor.generation is None or not self._target.shares_copies:
            return size
        return size - min(donor.common_prefix(request.prompt_ids), size - 1)

    def num_shared(self, slots: Iterable[Slot]) -> int:
        """Return how many cells of slots hold a token of another of them, too."""
        total, most = 0, dict[object, int]()
        for slot in slots:
            root, count = self._shared.get(slot, (None, 0))
            total += count
            most[root] = max(most.get(root, 0), count)
        return total - sum(most.values())

    def _donor(self, slot: Slot, request: Request, held: int) -> Slot | None:
        """Return the slot to copy the beginning of a prompt from, if that is worth it."""
        if self._min_copy is None:
            return None
        return best_donor(self._slots, slot, request, held + self._min_copy)

    def preempt(self, slot: Slot) -> None:
        """Free the cells of a running slot for others, until `resume`."""
        self.preempted.put(slot, settled=slot not in self.unsettled)
        self.unsettled.discard(slot)
        self.cut(slot, 0)
        slot.num_reusable = slot.size
        slot.preempted = True

    def resume(self, slot: Slot) -> None:
        """Let a preempted slot go on; what cannot be brought back of its text is read again."""
        slot.preempted = False
        slot.num_past = self.preempted.take(slot, self.empty_idle)

    def longest_draft(self, most: int | None) -> int | None:
        """Return the longest draft that can be taken back, at most `most`; None = any."""
        limits = [limit for limit in (most, self._max_draft) if limit is not None]
        return min(limits, default=None)

    def save_drafted(self, slot: Slot) -> None:
        """Save a sequence with a draft, which cannot be taken back token by token."""
        if slot.draft.size:
            slot.saved = self._target.save(slot.id)

    def reject(self, slot: Slot) -> None:
        length = slot.length - slot.num_out + slot.num_accepted
        if slot.branch and self._in_order:
            # A branch's cells would not lie in the order of its text: it is decoded again.
            length -= slot.num_accepted
        elif slot.branch and slot.saved is None and not self._target.adopt(slot.id, slot.branch):
            length = slot.num_before
        if slot.saved is None:
            if self.cut(slot, length) != length:
                self.num_failures += 1
        elif self._target.restore(slot.id, slot.saved, slot.num_before):
            # Accepted ones, of any branch, are decoded again with the next token.
            slot.num_past = slot.num_before
        else:
            self.num_failures += 1
            self.cut(slot, 0)

    def cut(self, slot: Slot, length: int) -> int:
        """Shorten the sequence to `length` tokens, or to fewer if that fails; return its length."""
        if length < slot.num_past:
            if not self._target.truncate(slot.id, length):
                length = self._back_to_window(slot, length)
            slot.num_past = length
            if slot in self.windows and length < self.windows[slot][1]:
                del self.windows[slot]  # another text may follow
            if slot in self._shared:
                root, count = self._shared[slot]
                self._shared[slot] = root, min(count, length)
        return slot.num_past

    def _back_to_window(self, slot: Slot, length: int) -> int:
        """Go back to where the slot's window was saved, else to nothing; return the length."""
        window, count = self.windows.get(slot, (None, 0))
        if 0 < count <= length and self._target.restore(slot.id, window, count):
            return count
        self._target.truncate(slot.id, 0)
        return 0

    def save_window(self, slot: Slot, state: npt.NDArray[np.uint8]) -> None:
        """Save the window at the end of the prompt, which a dump lacks.

        The sequence is cut there and loaded again, so it lacks what the dump lacks, too.

        state: A dump of the settled sequence.
        """
        size, count = slot.num_past, min(slot.num_prompt - 1, slot.num_reusable)
        if not 0 < self._target.window < size or not 0 < count < size:
            return
        if not self._target.truncate(slot.id, count):
            return  # it was loaded, and may have been saved before
        try:
            self.windows[slot] = self._target.save(slot.id), count
        finally:
            self._target.truncate(slot.id, 0)
            if not self._target.load(slot.id, state, size):
                self.drop(slot)

    def shift(self, slot: Slot, request: Request) -> tuple[int, int]:
        """Make room in a full context: discard tokens after those to keep.

        Returns:
            tuple: the first discarded token, and how many.

        Source: llama-server's context shift.

        Raises:
            BackendError: The target refuses.
        """
        first, count = discarded(slot.num_past, slot.size, slot.num_prompt, request)
        if not self._target.shift(slot.id, first, count):
            raise BackendError(f"the context of slot {slot.id} is full and does not shift")
        slot.discard(first, count)
        self.windows.pop(slot, None)
        self.unsettled.add(slot)
        return first, count

    def drop(self, slot: Slot) -> None:
        """Empty the sequence; for a slot whose request failed.

        Where the target raises, no later prompt shares a token with the slot, so that the next
        request on it empties the sequence first.
        """
        slot.num_past = max(1, slot.num_past)
        slot.tokens[: slot.num_past] = NO_TOKEN
        self._target.truncate(slot.id, 0)
        slot.num_past = 0
        self.unsettled.discard(slot)
        self.windows.pop(slot, None)
        self._shared.pop(slot, None)

    def empty_idle(self) -> bool:
        """Empty the idle slot that was used longest ago; False when none holds anything."""
        idle = [s for s in self._slots if s.generation is None and s.num_past]
        if idle:
            self.cut(min(idle, key=lambda slot: slot.used), 0)
        return bool(idle)


def discarded(held: int, size: int, num_prompt: int, request: Request) -> tuple[int, int]:
    """Return what a shift discards of a full context: the first token, and how many.

    Args:
        held: Tokens in the cache, size - 1.
        size: The context's.
        num_prompt: Tokens of the prompt.
        request: Says how many to keep and to discard.
    """
    num_keep = num_prompt if request.num_keep < 0 else request.num_keep
    first = max(0, min(num_keep, size - SPARE))
    left = held - first
    return first, max(1, min(request.num_discard or left // 2, left - 1))


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
