"""TraceTarget: llama.cpp computes every decode, recorded texts say which tokens it chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.errors import BackendError
from ngramspec.llamacpp.target import LlamaTarget

Tokens = npt.NDArray[np.int32]


class TraceTarget:
    """A target for ngramspec.engine whose rows name the recorded next token.

    Each sequence has its own list of texts; a decode with position 0 begins the next one of it. The
    engine reads rows as it reads llama.cpp's: as wide, one per output, their maximum searched for.

    Args:
        target: Computes; everything but the rows is its own.
        texts: By sequence, prompt and output of each of its requests.
        max_outputs: Rows in one decode at most.
    """

    def __init__(
        self, target: LlamaTarget, texts: Sequence[Sequence[Tokens]], max_outputs: int
    ) -> None:
        self._target = target
        self._waiting = [iter(own) for own in texts]
        self._computed = Rows(target.vocab_size)
        self._logits = np.empty((max_outputs, target.vocab_size), np.float32)
        self._logits.fill(0)  # not np.zeros: its pages would be made while steps are timed
        width = max(len(text) for own in texts for text in own)
        self._table = np.zeros((len(texts), width + 1), np.int32)
        self._ones: tuple[Any, Any] = (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def is_end(self, token_id: int) -> bool:
        """Tell that no token ends a text: requests say how many tokens they want."""
        return False

    def decode(self, batch: Batch, rows: Rows) -> None:
        """Compute a batch; `rows` then names the recorded tokens."""
        token_ids, positions, sequences, outputs = batch.arrays()
        for index in np.flatnonzero(positions == 0).tolist():
            self._begin(int(sequences[index]), int(token_ids[index]))
        self._target.decode(batch, self._computed)
        where, after = sequences[outputs], positions[outputs] + 1
        count = len(where)
        if len(self._computed) != count:
            raise BackendError(f"llama.cpp made {len(self._computed)} rows, expected {count}")
        self._logits[self._ones] = 0
        choices = self._table[where, np.minimum(after, self._table.shape[1] - 1)]
        self._ones = (np.arange(count), choices)
        self._logits[self._ones] = 1
        rows.set(self._logits[:count])

    def _begin(self, sequence: int, first: int) -> None:
        text = next(self._waiting[sequence])
        if int(text[0]) != first:
            raise BackendError(f"sequence {sequence} begins with {first}, recorded: {text[0]}")
        self._table[sequence] = 0
        self._table[sequence, : len(text)] = text
