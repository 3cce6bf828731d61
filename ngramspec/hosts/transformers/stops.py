"""Stops: where a row's text ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.errors import InputError
from ngramspec.hosts.transformers.texts import Texts


class Stops:
    """The stopping criteria of a call.

    End tokens and the length limit are checked here. Other criteria are called once for each text
    length that a pass reached, with the whole batch, and count for the rows that have just reached
    it; so they must be functions of the ids.

    Args:
        criteria: As generate() prepared them.
        prompt_len: Tokens of the padded prompts.
        pad: Id after a row's end, None for none.
        rows: Rows of the batch.

    Attributes:
        room: Tokens that a row may emit, >= 1.
        ends: Ids that end a row.

    Raises:
        InputError: Nothing bounds the length, or rows may end before others and there is no id to
            pad them with.
    """

    def __init__(
        self, criteria: Iterable[Any], prompt_len: int, pad: int | None, rows: int
    ) -> None:
        from transformers import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

        self._clocks: list[Any] = []
        self._others: list[Any] = []
        self.ends: tuple[int, ...] = ()
        longest = []
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                longest.append(criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                self.ends += tuple(int(token) for token in criterion.eos_token_id.flatten())
            elif type(criterion) is MaxTimeCriteria:
                self._clocks.append(criterion)
            else:
                self._others.append(criterion)
        if not longest:
            raise InputError("generate() set no length limit: set max_new_tokens")
        if rows > 1 and pad is None and (self.ends or self._others):
            raise InputError("rows of a batch end one by one: set pad_token_id to fill them up")
        self.room = max(1, min(longest) - prompt_len)
        self.reads_text = bool(self._others)
        self._ends = np.array(self.ends, dtype=np.int32)

    def cut(self, texts: Texts, row: int, token_ids: npt.NDArray[np.int32]) -> tuple[int, bool]:
        """Return how many of a row's next tokens belong to its text, and whether they end it."""
        room = self.room - int(texts.lengths[row])
        ends = np.flatnonzero(np.isin(token_ids[:room], self._ends))
        if ends.size:
            return int(ends[0]) + 1, True
        return min(len(token_ids), room), len(token_ids) >= room

    def check(
        self, texts: Texts, counts: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]
    ) -> None:
        """Ask the other criteria about tokens just written.

        Args:
            texts: With the tokens written, but the lengths from before.
            counts: New tokens per row, shortened here where a row ends earlier.
            ended: Set here for rows that end.
        """
        if self._others and counts.any():
            starts = texts.lengths
            rows = counts > 0
            open_rows = rows.copy()
            for length in range(int(starts[rows].min()) + 1, int((starts + counts).max()) + 1):
                reached = open_rows & (starts < length) & (length <= starts + counts)
                if reached.any():
                    stop = reached & self._asked(self._others, texts.seen(length))
                    counts[stop] = length - starts[stop]
                    ended |= stop
                    open_rows &= ~stop
        if self._clocks:
            ended |= self._asked(self._clocks, texts.seen(int(texts.lengths.max(initial=0)))) & (
                counts > 0
            )

    @staticmethod
    def _asked(criteria: list[Any], ids: Any) -> npt.NDArray[np.bool_]:
        import torch

        done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        for criterion in criteria:
            done = done | criterion(ids, None)
        answers: npt.NDArray[np.bool_] = done.cpu().numpy()
        return answers
