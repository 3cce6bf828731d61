"""SlotRequest: one request of SGLang on a slot, brought up to date from the end of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.drafting.slot_pool import SlotLease, SlotPool

Ids = npt.NDArray[np.int32]
_NONE: list[int] = []


class SlotRequest:
    """A slot and what is known of the request's text.

    Args:
        slots: Where the lease comes from and goes back to.
        depth: Tokens of the text's end that SGLang shows, >= 1.
    """

    def __init__(self, slots: SlotPool, depth: int) -> None:
        self.lease: SlotLease = slots.take()
        self.mute = False  # no drafter takes the text, or has room for it
        self._slots = slots
        self._depth = depth
        self._length = 0  # tokens of the text
        self._end = b""  # its last `depth` tokens
        self._ids, self._parents = _NONE, _NONE  # the tree that is being verified
        self._begun = False

    def begin(self, prompt: Any, output: Any) -> None:
        """Begin with the whole text of a request.

        Args:
            prompt, output: Token ids, anything that numpy reads.

        Raises:
            InputError: An id is not valid. The text is empty then.
        """
        self._forget()
        drafter, slot = self.lease
        prompt_ids, output_ids = np.array(prompt, np.int32), np.array(output, np.int32)
        drafter.begin(slot, prompt_ids)
        self._begun = True
        drafter.accept(slot, output_ids, 0)
        self._length = len(prompt_ids) + len(output_ids)
        end = np.concatenate((prompt_ids[-self._depth :], output_ids))
        self._end = end[-self._depth :].tobytes()

    def follow(self, tail: Sequence[int], length: int) -> None:
        """Append what is new in the text.

        Args:
            tail: Its last tokens, at least one.
            length: Tokens of the whole text.

        Raises:
            InputError: An id is not valid.

        Cost: O(len(tail)), and O(tree) where the text grew by more than the tail. A tail that does
        not continue the known text begins a new one.
        """
        ids = np.array(tail, np.int32)
        new = length - self._length
        if new > len(ids):
            ids = self._completed(ids, new)
        before = ids[: len(ids) - new] if new > 0 else ids
        goes_on = self._begun and 0 <= new <= len(ids) and self._end.endswith(before.tobytes())
        if not goes_on:
            self.begin(ids, _NONE)
            self._length = length
            return
        if new:
            fresh = ids[len(ids) - new :]
            drafter, slot = self.lease
            drafter.accept(slot, fresh, self._right(fresh))
            self._ids, self._parents = _NONE, _NONE
            self._length = length
            self._end = (self._end + fresh.tobytes())[-4 * self._depth :]

    def propose(self, most: int, width: int) -> tuple[Ids, Ids]:
        drafter, slot = self.lease
        tokens, parents, _ = drafter.propose_tree(slot, most, width)
        self._ids, self._parents = tokens.tolist(), parents.tolist()
        return tokens, parents

    def leave(self) -> None:
        if self._begun:
            self._slots.give_back(self.lease)
        else:
            self._slots.leave(self.lease)

    def _forget(self) -> None:
        self._ids, self._parents, self._length, self._end = _NONE, _NONE, 0, b""

    def _completed(self, tail: Ids, new: int) -> Ids:
        """Return all new tokens: a path of the tree and one more, which end with the tail.

        The tail alone if there is no such path.
        """
        depths: list[int] = []
        for node, above in enumerate(self._parents):
            depths.append(1 if above < 0 else depths[above] + 1)
            if depths[node] == new - 1:
                path = [int(tail[-1])]
                at = node
                while at >= 0:
                    path.append(self._ids[at])
                    at = self._parents[at]
                ids = np.array(path[::-1], np.int32)
                if np.array_equal(ids[-len(tail) :], tail):
                    return ids
        return tail

    def _right(self, tokens: Ids) -> int:
        """Return how many of the new tokens, without the last, follow a path of the tree."""
        at, right = -1, 0
        if not self._ids:
            return 0
        for token in tokens[:-1].tolist():
            after = range(at + 1, len(self._ids))
            at = next((i for i in after if self._parents[i] == at and self._ids[i] == token), -1)
            if at < 0:
                break
            right += 1
        return right
