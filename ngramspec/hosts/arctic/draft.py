"""SuffixDecodingDraft: a draft of a SuffixDecodingCache."""

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
    parents: for each token the index of its parent, -1 if it directly follows the context.
    probs: the probability that each token and all its ancestors are right, 0..1.
    score: the sum of probs: the expected number of accepted tokens.
    match_len: how many of the context's last 32 tokens match the text that the draft comes from.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    score: float = 0.0
    match_len: int = 0
