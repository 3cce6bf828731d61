"""Assistant: drafts from MTP heads that look at the target's own cache and keep none."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.engine.sources.mtp import MtpHeads, States, Text
from ngramspec.errors import CapacityError


class Assistant(MtpHeads):
    """A draft source that runs an assistant of the target, greedily, for all slots at once.

    An assistant reads no text: it looks at what the target's cache holds. A draft begins with the
    newest token and the target's state after the token before it, and goes on with the assistant's
    own states. All its tokens are computed at the position of the newest one, as the cache has no
    entries for them.

    Args and errors are those of MtpHeads.

    Source: llama.cpp common/speculative, draft-mtp with a shared cache.
    """

    def copied(self, source: int, slot: int, length: int) -> None:
        """Follow the target, which has copied the first tokens of a sequence to an empty one."""
        self._forget(slot, length)  # its next token comes of a decode, which tells the state

    def shifted(self, slot: int, first: int, count: int) -> None:
        """Follow the target, which has discarded tokens; those after them have moved down."""
        text = self._texts[slot]
        self._settle(text)
        if first + count > text.length:
            self._forget(slot, max(text.length - count, 0))
            return
        text.length -= count

    def _take(self, text: Text, tokens: TokenIds, states: States) -> None:
        text.length += int(tokens.size)
        text.state = states[-1].copy()

    def _draft(self, slots: Sequence[int], most: dict[int, int]) -> None:
        started, calls = perf_counter_ns(), 0
        states = {slot: self._texts[slot].state for slot in slots}
        drafting, first = list(slots), started
        while drafting:
            self._batch.clear()
            for row, slot in enumerate(drafting):
                text = self._texts[slot]
                token = text.draft[-1] if text.draft else text.newest
                self._batch.add(slot, text.length, np.array([token], dtype=np.int32), None, True)
                self._states[row] = states[slot]
            try:
                after = self._heads.decode(self._batch, self._states, self._rows, 0)
            except CapacityError:
                break  # the target's own next token has no room either: the engine makes some
            states = {slot: after[row].copy() for row, slot in enumerate(drafting)}
            drafting = [
                slot for row, slot in enumerate(drafting) if self._extend(slot, row, most[slot])
            ]
            calls += 1
            if calls == 1:
                first = perf_counter_ns()
        if calls:
            self._times.first.note(1e-9 * (first - started))
        if calls > 1:
            self._times.each.note(1e-9 * (perf_counter_ns() - first) / (calls - 1))
