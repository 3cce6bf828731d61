"""Rows of logits that a target computes for tokens, in batches of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine.target import Target

Ids = Sequence[int] | npt.NDArray[np.int32]


def tokens_of(seed: int, size: int) -> npt.NDArray[np.int32]:
    """Return letters of the made-up vocabularies, always the same ones for a seed."""
    return np.random.default_rng(seed).integers(326, 352, size).astype(np.int32)


def rows_of(
    target: Target, tokens: Ids, *, sequence: int = 0, start: int = 0, step: int = 0
) -> npt.NDArray[np.float32]:
    """Decode tokens from position `start` on, `step` at a time (0: all), and return their rows."""
    ids = np.asarray(tokens, dtype=np.int32)
    batch, rows, logits = Batch(max(1, ids.size)), Rows(target.vocab_size), []
    for first in range(0, ids.size, step or max(1, ids.size)):
        part = ids[first : first + (step or ids.size)]
        batch.clear()
        batch.add(sequence, start + first, part[:1], draft=part[1:])
        target.decode(batch, rows)
        logits += [rows.copy(i) for i in range(len(rows))]
    return np.array(logits, dtype=np.float32).reshape(len(logits), target.vocab_size)
