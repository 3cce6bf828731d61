"""BatchDrafts: one drafter for all rows of an engine's batch, from token table to draft lists."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ngramspec._native.core.arguments import lists_of
from ngramspec._native.drafter.drafter import Drafter
from ngramspec.arrays import TokenIds
from ngramspec.hosts.rows import RowSlots


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

    def draft(
        self,
        token_ids: TokenIds,
        lengths: TokenIds,
        counts: TokenIds,
        most: TokenIds | int,
        keys: Sequence[Hashable] | None = None,
        prompt_lens: TokenIds | None = None,
    ) -> list[list[int]]:
        """Follow a step's rows and draft for them, where nobody else drafts for the pass.

        Args, returns, raises and cost: As for `follow` and `propose`.
        """
        self.follow(token_ids, lengths, counts, keys, prompt_lens)
        return self.propose(most)

    def follow(
        self,
        token_ids: TokenIds,
        lengths: TokenIds,
        counts: TokenIds,
        keys: Sequence[Hashable] | None = None,
        prompt_lens: TokenIds | None = None,
    ) -> None:
        """Bring the drafter up to date with a step's rows.

        Args:
            token_ids, lengths, counts, keys, prompt_lens: As for RowSlots.follow. Of these,
                `lengths` is kept until `propose`.

        Raises:
            As RowSlots.follow.

        Cost: O(b + emitted tokens), plus the length of each text that begins or comes back.
        """
        self.num_rows = self.num_tokens = 0  # until it is done
        self._slots = self.rows.follow(token_ids, lengths, counts, keys, prompt_lens)
        self._lengths = lengths
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
