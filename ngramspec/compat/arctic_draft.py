"""SuffixDecodingDraft: what a SuffixDecodingCache drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32] | Sequence[int]


@dataclass
class SuffixDecodingDraft:
    """Tokens that may follow a context.

    token_ids: the tokens, parents before their children.
    parents: of each token the index of the one it comes after, -1 for the context itself.
    probs: how likely each token and all before it are right, 0..1.
    score: the sum of probs: tokens that are expected to be accepted.
    match_len: of the context's last 32 tokens, those that agree with where the draft comes from.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    score: float = 0.0
    match_len: int = 0
