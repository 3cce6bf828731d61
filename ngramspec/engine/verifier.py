"""Verifier: choose tokens from the decoded rows, commit them, take rejected drafts back."""

from __future__ import annotations

import numpy as np

from ngramspec._rows import Rows
from ngramspec._verify import verify
from ngramspec.engine.emission import Emission
from ngramspec.engine.figures import EngineStats
from ngramspec.engine.policy import DraftPolicy
from ngramspec.engine.request import TokenIds
from ngramspec.engine.sequences import Sequences
from ngramspec.engine.slot import Slot
from ngramspec.engine.sources import Chain


class Verifier:
    """The second half of a step, for one slot at a time.

    Args:
        rows: Logits of the last decode.
        most: Tokens that one slot can emit in a step.
        chain, policy, sequences, emission, stats: The engine's; they learn what came of drafts.
    """

    def __init__(
        self,
        rows: Rows,
        most: int,
        chain: Chain,
        policy: DraftPolicy,
        sequences: Sequences,
        emission: Emission,
        stats: EngineStats,
    ) -> None:
        self._rows = rows
        self._out = np.empty(most, dtype=np.int32)
        self._chain = chain
        self._policy = policy
        self._sequences = sequences
        self._emission = emission
        self._stats = stats

    def step(self, slot: Slot) -> None:
        """Verify the slot's draft, or choose its next token, and emit."""
        draft = slot.draft
        made = verify(self._rows, slot.first_row, draft, slot.sampler, self._out)
        count = made if made >= 0 else -1 - made
        size = int(draft.size)
        accepted = min(count, size) if made < 0 else count - 1
        tokens = self._out[:count]
        if count and not slot.decoding:
            self._chain.begin(slot)
        if accepted < size:
            self._sequences.reject(slot, slot.length + accepted, slot.num_before)
        slot.append(tokens)
        if slot.decoding:
            self._learn(slot, tokens, size, accepted)
        self._emission.emit(slot, tokens, accepted, made < 0)

    def _learn(self, slot: Slot, tokens: TokenIds, size: int, accepted: int) -> None:
        source = slot.draft_source
        self._chain.accept(slot, tokens, accepted)
        if source is None or not size or slot.generation is None:
            return
        self._policy.record(slot.id, source.name, size, accepted)
        self._stats.count_draft(size, accepted)
        timings = slot.generation.timings
        timings.num_drafts += 1
        timings.num_draft_tokens += size
        timings.num_accepted_tokens += accepted
        if source.name == "prediction":
            timings.num_prediction_accepted += accepted
            timings.num_prediction_rejected += size - accepted
