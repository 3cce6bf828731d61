"""BatchDrafts: one drafter for all rows of an engine's batch, also when rows move."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from ngramspec._native.core.arguments import lists_of
from ngramspec._native.drafter.drafter import Drafter
from ngramspec.arrays import TokenIds
from ngramspec.errors import InputError

log = logging.getLogger(__name__)
_NONE = np.int32(-1)
IDLE = 1 << 20  # tokens of ended texts, and of memory for longer ones, that slots keep together
SMALL = 4096  # tokens whose memory a slot always keeps from one text to the next
LARGER = 4  # times the length of a new text: memory of a longer one than that is freed


class Rows(NamedTuple):
    """The rows of an engine's step.

    token_ids: The table: int32, shape (r, w), C-contiguous.
    lengths: int32, shape (b,), b <= r: tokens in each row, the newest ones included.
    counts: int32, shape (b,): tokens that the step emitted, 0 = the row is not decoding.
    keys: A name of each row's request, in all steps or none; None = recognised by content.
    prompt_lens: int32, shape (b,): tokens of each prompt; None = all but the newest.
    """

    token_ids: TokenIds
    lengths: TokenIds
    counts: TokenIds
    keys: Sequence[Hashable] | None = None
    prompt_lens: TokenIds | None = None


class RowSlots:
    """Follow the rows of a batch with the slots of a drafter.

    An engine keeps the texts of a batch in rows of one table; rows move, end and begin between its
    steps, and preempted requests come back in any row. A row is recognised by its key if the engine
    gives one, otherwise by its content: the slot that had the row last is tried, then the slot with
    the longest history that the row begins with. Only some tokens are compared; texts that agree in
    all of them are taken for the same, which can make drafts worse but nothing else.

    Ended texts stay on their slots, in case they come back: IDLE tokens, those that ended last. The
    memory of others is freed, so that all slots together take about what the running texts need.

    Args:
        drafter: With a slot for every row that a batch can have; not shared.

    Not locked: one thread at a time.
    """

    def __init__(self, drafter: Drafter) -> None:
        num = drafter.slots
        self._drafter = drafter
        self._slot_of_row = np.full(num, -1, np.int32)
        self._accepted = np.empty(num, np.int32)
        self._active = np.zeros(num, np.bool_)
        self._num_active = 0
        self._used = np.zeros(num, np.int64)  # step in which the slot was last active
        self._room = np.zeros(num, np.int64)  # tokens of the longest text since it had no memory
        self._idle_room = 0  # the same of all slots that are not active
        self._step = 0
        self._slot_of_key: dict[Hashable, int] = {}
        self._key_of_slot: list[Hashable] = [None] * num
        self._warned = False  # that a text cannot begin
        self.steady = False  # the last step found every row where it was

    @property
    def num_active(self) -> int:
        """Return how many slots have a request that has begun and not ended."""
        return self._num_active

    def follow(self, rows: Rows) -> TokenIds:
        """Bring the slots up to date with a step's rows.

        rows: Not kept.

        Returns:
            int32, shape (b,): the slot of each row, -1 where it is not decoding, there are more
            rows than slots, or its text has an id below 0 or no room. A new array.

        Raises:
            InputError: The arrays are not as described.
            MemoryError: No room for new tokens.

        Cost: O(b + emitted tokens), plus the length of each text that begins, comes back or goes.
        """
        token_ids, lengths, counts = rows.token_ids, rows.lengths, rows.counts
        num = min(len(counts), self._drafter.slots)
        self._step += 1
        accepted = self._accepted[:num]
        assigned = self._assigned(num, rows.keys)
        all_decode = bool(counts[:num].all())
        slots = assigned.copy() if all_decode else np.where(counts[:num] > 0, assigned, _NONE)
        self._drafter.follow_batch(slots, token_ids, lengths[:num], accepted)
        self.steady = all_decode and num == self._num_active and bool((accepted >= 0).all())
        if self.steady and num == len(counts):
            return slots  # as they were
        self._reseat(slots, rows)
        self._slot_of_row[:num] = slots
        self._slot_of_row[num:] = -1
        if num == len(counts):
            return slots
        return np.concatenate([slots, np.full(len(counts) - num, -1, np.int32)])

    def _reseat(self, slots: TokenIds, rows: Rows) -> None:
        """Find slots for the rows that theirs did not match, and end requests without a row."""
        missed = (rows.counts[: slots.size] > 0) & (self._accepted[: slots.size] < 0)
        lost = np.flatnonzero(missed).astype(np.int32)
        if lost.size:
            slots[lost] = -1
            if rows.keys is not None:
                self._end_others(slots)
            self._seat(slots, lost, rows)
        self._end_others(slots)
        while self._idle_room > IDLE:
            held = np.flatnonzero(~self._active & (self._room > 0))
            self._forget(int(held[self._used[held].argmin()]))

    def _assigned(self, num: int, keys: Sequence[Hashable] | None) -> TokenIds:
        if keys is None:
            return self._slot_of_row[:num]
        find = self._slot_of_key.get
        return np.fromiter((find(key, -1) for key in keys[:num]), np.int32, num)

    def _seat(self, slots: TokenIds, lost: TokenIds, rows: Rows) -> None:
        """Give each lost row a slot, and bring the slot up to date."""
        token_ids, lengths, counts, keys, prompt_lens = rows
        chosen = self._choose(slots, lost, rows)
        joined = np.full(slots.size, -1, np.int32)
        for row, slot in zip(lost.tolist(), chosen.tolist(), strict=True):
            length = int(lengths[row] - counts[row])
            if not (self._active[slot] and self._drafter.length(slot) == length):
                if prompt_lens is not None:
                    length = min(length, int(prompt_lens[row]))
                try:
                    self._begin(slot, token_ids[row, :length])
                except (InputError, MemoryError) as error:
                    self._say(error)
                    continue
            if keys is not None:
                self._name(slot, keys[row])
            joined[row] = slot
        accepted = self._accepted[: slots.size]
        self._drafter.follow_batch(joined, token_ids, lengths[: slots.size], accepted)
        slots[lost] = np.where(accepted[lost] >= 0, joined[lost], -1)

    def _say(self, error: Exception) -> None:
        if not self._warned:  # the row is met again at every step
            self._warned = True
            log.warning("a row has no drafts, and others like it: %s", error)

    def _choose(self, slots: TokenIds, lost: TokenIds, rows: Rows) -> TokenIds:
        """Return a slot for each lost row: its key's, one with its text, or the longest unused."""
        free = np.ones(self._active.size, np.bool_)
        free[slots[slots >= 0]] = False
        chosen = np.full(lost.size, -1, np.int32)
        if rows.keys is not None:
            for i, row in enumerate(lost.tolist()):
                chosen[i] = self._slot_of_key.get(rows.keys[row], -1)
            free[chosen[chosen >= 0]] = False
        new = np.flatnonzero(chosen < 0)
        some = np.empty(new.size, np.int32)
        choice = np.flatnonzero(free).astype(np.int32)
        self._drafter.find_slots(choice, rows.token_ids, rows.lengths, lost[new], some)
        chosen[new] = some
        free[some[some >= 0]] = False
        rest = np.flatnonzero(chosen < 0)
        # Slots whose request has ended come first, the earliest ended of them first.
        order = np.lexsort((self._used, self._active))
        chosen[rest] = order[free[order]][: rest.size]
        return chosen

    def _begin(self, slot: int, prompt: TokenIds) -> None:
        if self._active[slot]:
            self._end(slot)
        if self._room[slot] > LARGER * max(prompt.size, SMALL):
            self._forget(slot)
        self._drafter.begin(slot, prompt)
        self._active[slot] = True
        self._num_active += 1
        self._idle_room -= int(self._room[slot])

    def _end_others(self, slots: TokenIds) -> None:
        """End the requests whose rows are gone; their texts stay, in case they come back."""
        seated = slots[slots >= 0]
        if seated.size != self._num_active:
            gone = self._active.copy()
            gone[seated] = False
            for slot in np.flatnonzero(gone).tolist():
                self._end(slot)

    def _end(self, slot: int) -> None:
        self._drafter.end(slot)
        self._active[slot] = False
        self._num_active -= 1
        self._used[slot] = self._step
        self._room[slot] = max(int(self._room[slot]), self._drafter.length(slot))
        self._idle_room += int(self._room[slot])

    def _forget(self, slot: int) -> None:
        self._drafter.forget(slot)
        self._idle_room -= int(self._room[slot])
        self._room[slot] = 0

    def _name(self, slot: int, key: Hashable) -> None:
        before = self._key_of_slot[slot]
        if before != key:
            if self._slot_of_key.get(before) == slot:
                del self._slot_of_key[before]
            self._key_of_slot[slot] = key
            self._slot_of_key[key] = slot


class BatchDrafts:
    """Draft for the rows of a batch.

    Args:
        drafter: With a slot for every row that a batch can have; not shared.
        max_draft: Longest draft, in tokens, >= 1.
        max_length: Most tokens that the engine lets a text have; a draft leaves room for one more.
        vocab_size: Drafts end before the first id >= it, which a statistics file may hold;
            0 = any id.

    Not locked: one thread at a time.
    """

    def __init__(
        self, drafter: Drafter, max_draft: int, max_length: int, vocab_size: int = 0
    ) -> None:
        self.drafter = drafter
        self.rows = RowSlots(drafter)
        self._last = max_length - 1
        self._vocab_size = vocab_size or 1 << 31
        self._drafts = np.zeros((drafter.slots, max_draft), np.int32)
        self._lens = np.zeros(drafter.slots, np.int32)
        self._same = np.zeros(drafter.slots, np.int32)
        self.num_rows = 0  # that the last step followed, and for which `propose` drafts
        self.num_tokens = 0  # of their pass: each row's newest, and after `propose` its draft
        self._slots = self._lengths = np.zeros(0, np.int32)  # of all rows of the step
        self._at: TokenIds | slice = slice(None)  # those that are followed

    def draft(self, rows: Rows, most: TokenIds | int) -> list[list[int]]:
        """Follow a step's rows and draft for them, where nobody else drafts for the pass.

        Args, returns, raises and cost: As for `follow` and `propose`.
        """
        self.follow(rows)
        return self.propose(most)

    def follow(self, rows: Rows) -> None:
        """Bring the drafter up to date with a step's rows.

        rows: Their lengths are kept until `propose`.

        Raises:
            As RowSlots.follow.

        Cost: O(b + emitted tokens), plus the length of each text that begins or comes back.
        """
        self.num_rows = self.num_tokens = 0  # until it is done
        self._slots = self.rows.follow(rows)
        self._lengths = rows.lengths
        self._at = slice(None)
        if not self.rows.steady:
            self._at = np.flatnonzero(self._slots >= 0).astype(np.int32)
        self.num_rows = self.num_tokens = self._slots[self._at].size

    def propose(
        self, most: TokenIds | int, others: int = 0, other_tokens: int = 0
    ) -> list[list[int]]:
        """Draft for the rows that were followed last.

        Args:
            most: Longest draft, per row (int32, shape (b,)) or of all rows.
            others: Rows of the pass that decode and are not followed here, >= 0.
            other_tokens: What they have in the pass, drafts included, >= others.

        Returns:
            One list per row, empty where it has no draft.

        Raises:
            InputError: others or other_tokens is out of its bounds.

        Cost: O(b + drafted tokens).
        """
        num, chosen, at = self.num_rows, self._slots[self._at], self._at
        if not num:
            return [[] for _ in range(self._slots.size)]
        drafts, lens = self._drafts[:num], self._lens[:num]
        limits = self._limits(most if isinstance(most, int) else most[at], self._lengths[at])
        self.drafter.propose_batch(
            chosen, limits, drafts, lens, others=others, other_tokens=other_tokens
        )
        if drafts.max() >= self._vocab_size:
            self._cut(chosen, drafts, lens)
        self.num_tokens = num + int(lens.sum())
        lists = lists_of(drafts, lens)
        if isinstance(at, slice):
            return lists
        drafted: list[list[int]] = [[] for _ in range(self._slots.size)]
        for row, draft in zip(at.tolist(), lists, strict=True):
            drafted[row] = draft
        return drafted

    def _limits(self, most: TokenIds | int, lengths: TokenIds) -> TokenIds:
        """Return the longest draft of each row that leaves room in its text."""
        if isinstance(most, int) and int(lengths.max()) + most <= self._last:
            limits = self._same[: lengths.size]
            limits.fill(most)
            return limits
        limits = np.minimum(most, self._last - lengths)
        return np.maximum(limits, 0).astype(np.int32, copy=False)

    def _cut(self, slots: TokenIds, drafts: TokenIds, lens: TokenIds) -> None:
        """End drafts before ids that the model does not have."""
        outside = drafts >= self._vocab_size
        first = np.where(outside.any(axis=1), outside.argmax(axis=1), drafts.shape[1])
        for i in np.flatnonzero(first < lens).tolist():
            lens[i] = first[i]
            self.drafter.shorten(int(slots[i]), int(first[i]))
        drafts[outside] = 0
