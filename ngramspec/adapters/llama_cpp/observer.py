"""Observer: shows the logits of a Llama's passes to a drafter that learns from them.

A draft model is called after each pass, so the pass of the last draft can be seen then: before the
drafter learns the new text, while the draft is still pending.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ngramspec.adapters.llama_cpp.streams import Stream
from ngramspec.arrays import TokenIds

MOST_ROWS = 16  # of a pass, as the engine shows


class Observer:
    """Shows rows to one drafter; does nothing if its sources learn nothing from logits."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self._useful = getattr(drafter, "top", 0) > 0

    def observe_draft(self, stream: Stream, ids: TokenIds) -> bool:
        """Show the pass that verified the stream's draft, right tokens and wrong ones.

        Call it before the drafter is told of `ids`.

        Returns:
            Whether there was such a pass: a host may have cut the draft, or read another text.

        Cost: about 45 us per row of 150,000. Copies no row.
        """
        batch = self._batch_of(stream)
        length, tail = stream.length, stream.tail[-2:]
        if batch is None or not 0 < length < ids.size:
            return False
        first, tokens = batch.tokens()
        at = length - 1 - first  # of the newest token that the draft follows
        if not batch.first_row() <= at < tokens.size or tokens[at] != tail[-1]:
            return False
        shown = tokens[at + 1 :]
        if not np.array_equal(shown, stream.draft[: shown.size]):
            return False
        if not np.array_equal(ids[length - tail.size : length], tail):
            return False
        rows = batch.rows(at, min(tokens.size, at + MOST_ROWS))
        if rows is not None:
            self._drafter.observe_logits(stream.slot, rows)
        return rows is not None

    def observe_text(self, stream: Stream, ids: TokenIds) -> None:
        """Show the newest rows of a pass over `ids` itself, such as a prompt; all rows it has.

        Call it when the drafter was told of `ids`.
        """
        batch = self._batch_of(stream)
        if batch is None:
            return
        first, tokens = batch.tokens()
        stop = min(tokens.size, ids.size - 1 - first)  # the newest token is not evaluated yet
        start = max(batch.first_row(), stop - MOST_ROWS)
        if start < stop and np.array_equal(tokens[:stop], ids[first : first + stop]):
            rows = batch.rows(start, stop)
            if rows is not None:
                self._drafter.observe_logits(stream.slot, rows, first + start)

    def _batch_of(self, stream: Stream) -> Any:
        return stream.host.last_batch() if self._useful and stream.host is not None else None
