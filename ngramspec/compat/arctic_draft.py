"""SuffixDecodingDraft and the arguments it is asked for with, checked as Arctic checks them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngramspec.errors import InputError

Ids = npt.NDArray[np.int32]
TokenIds = Ids | Sequence[int]


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


class DraftLimits(NamedTuple):
    """How long a draft may be.

    max_tokens: tokens, 0..64.
    factor, offset: and at most factor * match_len + offset.
    min_probability: and only while all of it is at least so likely right.
    width: tokens of the same depth; 1 = a chain.
    """

    max_tokens: int
    factor: float
    offset: float
    min_probability: float
    width: int = 1

    def most(self, match_len: int) -> int:
        """Return the tokens that a match of so many allows, >= 0."""
        room = match_len * self.factor + self.offset + 1e-6
        return max(0, int(min(room, self.max_tokens)))


def as_tokens(values: Any, name: str, newest: int = 0) -> Ids:
    """Return token ids as an array; a view where an array is given.

    Args:
        values: int32 array of shape (n,), contiguous, or a sequence of int.
        name: What messages call it.
        newest: Only the last so many; 0 = all.

    Raises:
        InputError: An array of another kind.
        TypeError: No sequence of int32 numbers.

    Cost: O(n) of a sequence, or O(newest); O(1) of an array.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype != np.int32 or not values.flags.c_contiguous:
            raise InputError(
                f"{name} must be a contiguous int32 array of shape (n,), got {values.dtype} of "
                f"shape {values.shape}"
            )
        return values[-newest:]
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a sequence of int, got {type(values).__name__}")
    try:
        return np.frombuffer(array("i", values[-newest:]), np.int32)
    except (TypeError, OverflowError) as error:
        raise TypeError(f"{name} must hold int32 numbers: {error}") from None
