"""Synthetic acceptance: drafts that dice accept, to see what a machine makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.engine.sources.source import Claims, DraftSource
from ngramspec.errors import InputError

NAME = "synthetic"
ORDINARY = 64  # different tokens that it drafts, at most


def rates_of(length: float, longest: int) -> tuple[float, ...]:
    """Return the rates of drafts that yield a mean number of tokens per pass.

    Each token is right with the same probability if those before it are.

    Args:
        length: Mean tokens per pass of the longest drafts, the target's own included.
        longest: Tokens of these drafts, >= 1.

    Raises:
        InputError: `length` is not in 1..longest + 1.

    Source: vLLM's synthetic_acceptance_length.
    """
    if not 1.0 <= length <= longest + 1:
        raise InputError(f"a mean length must be in 1..{longest + 1}, got {length}")
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**i for i in range(1, longest + 1)) < length - 1 else (low, p)
    return tuple(high**i for i in range(1, longest + 1))


class SyntheticSource(DraftSource):
    """Always drafts, in no time, and claims what the dice will say. Its tokens mean nothing.

    Args:
        rates: As for Dice.
        tokens: int32, not empty: what it drafts are ordinary tokens like these, such as a prompt's.
        longest: Its longest draft, >= 1; longer ones than there are rates can only be wrong.
    """

    name = NAME

    def __init__(self, rates: Sequence[float], tokens: TokenIds, longest: int) -> None:
        before = np.concatenate([[1.0], rates[:-1]])
        claims = np.divide(rates, before, out=np.zeros(len(rates)), where=before > 0)
        self._claims = np.zeros(longest, np.float32)
        self._claims[: len(claims)] = claims[:longest]
        self._draft = np.resize(np.unique(tokens)[:ORDINARY], longest).astype(np.int32)
        self.max_draft = longest
        self._length = 0

    def draft(self, slot: int, limit: int) -> TokenIds:
        """Return a draft of `limit` tokens, or of its longest."""
        self._length = min(limit, self.max_draft)
        return self._draft[: self._length]

    def confidence(self, slot: int) -> Claims:
        """Return how often the dice will take each token if they take those before it."""
        return self._claims[: self._length]
