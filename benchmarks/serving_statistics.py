"""Ratios of paired blocks, with the interval that holds them, and when there is none to give.

A block is the same few requests, sent to one server after the other within a second or so: what
disturbs the machine for longer disturbs both, and leaves their ratio alone. What disturbs one of
them only is seen in the processor time of other programs, and takes the pair out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

QUIET = 0.15  # cores that other programs may use during a block
FEWEST = 6  # pairs; the 95 % interval of a median of five is wider than the five
SAMPLES = 10_000
LOW, HIGH = 2.5, 97.5  # percentiles


@dataclass(frozen=True)
class Ratio:
    """The median ratio of pairs and its 95 % interval, by bootstrap.

    used, pairs: How many pairs were quiet, and how many there were.
    """

    median: float
    low: float
    high: float
    used: int
    pairs: int

    @property
    def certain(self) -> bool:
        """Whether enough pairs were quiet to tell."""
        return self.used >= FEWEST

    def __str__(self) -> str:
        if not self.used:
            return "?"
        text = f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"
        return text if self.certain else f"{text} ?"


def ratio(
    first: Sequence[float], second: Sequence[float], quiet: Sequence[bool], seed: int = 0
) -> Ratio:
    """Return how many times `second` is `first`, by the pairs that are quiet.

    Args:
        first, second: One rate per block, > 0, in the same order.
        quiet: Whether nothing else disturbed a block of either.
        seed: Of the resampling: the same figures give the same interval.

    Raises:
        ValueError: The lengths differ.
    """
    if not len(first) == len(second) == len(quiet):
        raise ValueError(f"{len(first)} and {len(second)} rates of {len(quiet)} blocks")
    mask = np.array(quiet, dtype=bool)
    ratios = np.array(first, dtype=float)[mask] / np.array(second, dtype=float)[mask]
    if not ratios.size:
        return Ratio(np.nan, np.nan, np.nan, 0, len(quiet))
    chosen = np.random.default_rng(seed).integers(0, ratios.size, (SAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[chosen], axis=1), (LOW, HIGH))
    return Ratio(float(np.median(ratios)), float(low), float(high), int(ratios.size), len(quiet))


def verdict(ratios: Sequence[Ratio]) -> str:
    """Say whether the machine was quiet enough for these ratios."""
    used, pairs = sum(one.used for one in ratios), sum(one.pairs for one in ratios)
    unknown = sum(not one.certain for one in ratios)
    text = f"{used} of {pairs} pairs of blocks were quiet (other programs on at most {QUIET} cores)"
    if not unknown:
        return f"{text}; the others are left out."
    return (
        f"Cannot tell: {text}, and {unknown} of {len(ratios)} ratios, marked ?, have fewer than "
        f"{FEWEST} of them. More --requests or --rounds may help; a quiet machine does."
    )
