"""Drafts: one slot of a drafter per row of a batch, and what happens when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.arrays import TokenIds

log = logging.getLogger(__name__)


class Drafts:
    """The drafts of one call of generate().

    Row i of the batch has slot i. A drafter that raises is logged once and drafts nothing for the
    rest of the call: generation goes on without drafts.

    Args:
        drafter: With at least one slot per row of the batch.
        rows: Rows of the batch.
        longest: Most tokens of a draft.
        vocab_size: Drafts end before an id >= it.
        ends: Ids that nothing is drafted after.
        tree_width: Most tokens of a draft at one depth, 0 = drafts are chains.

    Attributes:
        tokens: int32 (rows, longest), the drafts; after their ends 0 or old data.
        parents: int32 (rows, longest): the index of the token before each one, -1 = the text.
        lengths: int32 (rows,), their lengths, 0 for rows that were not asked.
    """

    def __init__(
        self,
        drafter: Drafter,
        rows: int,
        longest: int,
        vocab_size: int,
        ends: Sequence[int],
        tree_width: int = 0,
    ) -> None:
        self._drafter = drafter
        self._tree_width = tree_width
        self._vocab_size = vocab_size
        self._ends = np.array(ends, dtype=np.int32)
        self._begun = [False] * rows
        self._failed = False
        chain = np.arange(-1, longest - 1, dtype=np.int32)
        self._out = np.zeros((rows, longest), dtype=np.int32)
        self._above = np.tile(chain, (rows, 1))
        self._lens = np.zeros(rows, dtype=np.int32)
        self.tokens = np.zeros((rows, longest), dtype=np.int32)
        self.parents = self._above.copy()
        self.lengths = np.zeros(rows, dtype=np.int32)

    def begin(self, row: int, prompt: TokenIds) -> None:
        """Start a row's request with its prompt, without padding."""
        self._begun[row] = True
        self._guard(lambda: self._drafter.begin(row, prompt))

    def propose(
        self, rows: npt.NDArray[np.int32], limits: npt.NDArray[np.int32], computed: int
    ) -> int:
        """Draft for rows, each up to its limit; return the length of the longest draft.

        Args:
            rows: Those of the batch that are open.
            limits: Longest draft of each, in tokens.
            computed: Rows that the pass computes, ended ones that it still holds included; it pads
                all of them to the longest draft, and a policy pays for that.
        """
        self.lengths[:] = 0
        count = len(rows)
        out, above, lens = self._out[:count], self._above[:count], self._lens[:count]
        arrays = (out, above, lens)
        if not self._guard(lambda: self._propose(rows, limits, computed, *arrays)):
            return 0
        self.lengths[rows] = lens
        self.tokens[rows] = out
        self.parents[rows] = above
        return int(lens.max(initial=0))

    def accept(self, row: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Tell the drafter what a row emitted, accepted tokens first."""
        self._guard(lambda: self._drafter.accept(row, token_ids, num_accepted))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Tell the policy how long a pass of this size took."""
        policy = self._drafter.policy
        if policy is not None:
            self._guard(lambda: policy.observe(num_tokens, seconds))

    @property
    def top(self) -> int:
        """Return how many of the model's likeliest tokens the drafter wants to know, 0 = none."""
        return 0 if self._failed else int(getattr(self._drafter, "top", 0))

    def observe_top(
        self, rows: npt.NDArray[np.int32], tokens: TokenIds, logprobs: npt.NDArray[np.float32]
    ) -> None:
        """Show what the model held likely in a pass, before `accept`.

        Args:
            rows: Those of the batch that are open.
            tokens, logprobs: Shape (rows of the batch, queries, k): after the newest token and
                after each drafted one, likeliest first.
        """
        for row in rows.tolist():
            count = int(self.lengths[row]) + 1
            shown = (row, tokens[row, :count], logprobs[row, :count])
            if not self._guard(lambda shown=shown: self._drafter.observe_top(*shown)):  # type: ignore[misc]
                return

    def end(self, row: int) -> None:
        """End a row's request, once; its text is now in the pool."""
        if self._begun[row]:
            self._begun[row] = False
            self._guard(lambda: self._drafter.end(row))

    def end_all(self) -> None:
        for row in range(len(self._begun)):
            self.end(row)

    def _propose(
        self, rows: Any, limits: Any, computed: int, out: TokenIds, above: TokenIds, lens: TokenIds
    ) -> None:
        drafter = self._drafter
        width = self._tree_width
        parents = above if width else None
        drafter.propose_batch(rows, limits, out, lens, parents, max(width, 1), padded_rows=computed)
        drafted = np.arange(out.shape[1]) < lens[:, None]
        unknown = drafted & ((out < 0) | (out >= self._vocab_size))  # cannot be looked up
        ends = drafted & np.isin(out, self._ends)
        for i in np.flatnonzero((unknown | ends).any(axis=1)):
            length = int(unknown[i].argmax()) if unknown[i].any() else int(lens[i])
            length = _useful(above[i, :length].tolist(), ends[i].tolist())
            if length < lens[i]:
                lens[i] = length
                drafter.shorten(int(rows[i]), length)

    def _guard(self, call: Callable[[], None]) -> bool:
        if self._failed:
            return False
        try:
            call()
        except Exception:
            self._failed = True
            self.lengths[:] = 0
            log.warning("the drafter failed: no drafts until generate() ends", exc_info=True)
            return False
        return True


def _useful(parents: list[int], ends: list[bool]) -> int:
    """Return the length of a draft without what it has last behind tokens that end the text."""
    length = 0
    behind: list[bool] = []
    for i, parent in enumerate(parents):
        behind.append(parent >= 0 and (behind[parent] or ends[parent]))
        if not behind[i]:
            length = i + 1
    return length
