"""Drafts: one slot of a drafter per row of a batch, and what happens when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.drafter.drafter import Drafter

log = logging.getLogger(__name__)
TokenIds = npt.NDArray[np.int32]


class Drafts:
    """The drafts of one call of generate().

    Row i of the batch has slot i. A drafter that raises is logged once and drafts nothing for the
    rest of the call: generation goes on without drafts.

    Args:
        drafter: With at least one slot per row of the batch.
        rows: Rows of the batch.
        width: Longest draft in tokens.
        vocab_size: Drafts end before an id >= it.
        ends: Ids after which a draft ends.

    Attributes:
        tokens: int32 (rows, width), the drafts; after their ends 0 or old data.
        lengths: int32 (rows,), their lengths, 0 for rows that were not asked.
    """

    def __init__(
        self, drafter: Drafter, rows: int, width: int, vocab_size: int, ends: Sequence[int]
    ) -> None:
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._ends = np.array(ends, dtype=np.int32)
        self._begun = [False] * rows
        self._failed = False
        self._out = np.zeros((rows, width), dtype=np.int32)
        self._lens = np.zeros(rows, dtype=np.int32)
        self.tokens = np.zeros((rows, width), dtype=np.int32)
        self.lengths = np.zeros(rows, dtype=np.int32)

    def begin(self, row: int, prompt: TokenIds) -> None:
        """Start a row's request with its prompt, without padding."""
        self._begun[row] = True
        self._guard(lambda: self._drafter.begin(row, prompt))

    def propose(self, rows: npt.NDArray[np.int32], limits: npt.NDArray[np.int32]) -> int:
        """Draft for rows, each up to its limit; return the length of the longest draft."""
        self.lengths[:] = 0
        count = len(rows)
        out, lens = self._out[:count], self._lens[:count]
        if not self._guard(lambda: self._propose(rows, limits, out, lens)):
            return 0
        self.lengths[rows] = lens
        self.tokens[rows] = out
        return int(lens.max(initial=0))

    def accept(self, row: int, token_ids: TokenIds, num_accepted: int) -> None:
        """Tell the drafter what a row emitted, accepted tokens first."""
        self._guard(lambda: self._drafter.accept(row, token_ids, num_accepted))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Tell the policy how long a pass of this size took."""
        policy = self._drafter.policy
        if policy is not None:
            self._guard(lambda: policy.observe(num_tokens, seconds))

    def end(self, row: int) -> None:
        """End a row's request, once; its text is now in the pool."""
        if self._begun[row]:
            self._begun[row] = False
            self._guard(lambda: self._drafter.end(row))

    def end_all(self) -> None:
        """End the requests that still run."""
        for row in range(len(self._begun)):
            self.end(row)

    def _propose(self, rows: Any, limits: Any, out: TokenIds, lens: TokenIds) -> None:
        drafter = self._drafter
        drafter.propose_batch(rows, limits, out, lens)
        if not lens.any():
            return
        drafted = np.arange(out.shape[1]) < lens[:, None]
        stop = drafted & ((out < 0) | (out >= self._vocab_size))
        # A token after an end is never emitted; an invalid id cannot be looked up.
        stop[:, 1:] |= (drafted & np.isin(out, self._ends))[:, :-1]
        for i in np.flatnonzero(stop.any(axis=1)):
            length = min(int(stop[i].argmax()), int(lens[i]))
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
