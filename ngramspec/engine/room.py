"""Room: which requests fit beside each other in a cache that all slots share."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ngramspec._native.engine.plan import tokens_left
from ngramspec._native.engine.slot import Slot
from ngramspec.engine.generation import Generation
from ngramspec.engine.sequences import Sequences
from ngramspec.engine.target import Target

# Tokens of an answer that are counted before they are written. Preempting a request costs little,
# and cells that stand empty cost passes, so what comes after these is not foreseen.
FORESEEN = 64
USUAL_ANSWER = 64.0  # tokens, before any request has ended
WEIGHT = 0.125  # of the newest answer in the mean


class Room:
    """Counts the cells that requests need now and are likely to need soon.

    Args:
        target: The model.
        slots: All slots of the engine.
        sequences: What the cache holds for them.
    """

    def __init__(self, target: Target, slots: Sequence[Slot], sequences: Sequences) -> None:
        self._cells = target.cells
        self._slots, self._sequences = slots, sequences
        self.usual = USUAL_ANSWER  # tokens

    def learn(self, generation: Generation) -> None:
        """Learn from a request that has ended how long answers are."""
        self.usual += WEIGHT * (generation.num_tokens - self.usual)

    def free(self) -> int:
        """Return how many cells running requests leave to others, which idle slots may hold.

        Without a running request any number: whatever a slot can hold, the cache can.

        Cost: O(slots).
        """
        running = [s for s in self._slots if s.generation is not None and not s.preempted]
        if self._cells is None or not running:
            return sys.maxsize
        texts = sum(slot.length + self.growth(slot.generation, slot.length) for slot in running)
        return self._cells - texts + self._sequences.num_shared(running)

    def growth(self, generation: Generation, length: int) -> int:
        """Return how many tokens a request is likely to add to its text soon.

        Args:
            generation: The request's.
            length: Tokens of prompt and answer so far.
        """
        most = generation.request.max_tokens
        room = self._slots[0].size - length
        most = most if most >= 0 else sys.maxsize
        return min(tokens_left(room, generation.num_tokens, most, self.usual), FORESEEN)
