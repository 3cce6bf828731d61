"""One pass over the n-grams of a size: how many, how often, and the most frequent ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.entries import tokens_of
from ngramspec.files.entries import (
    COUNT_MASK,
    FOLLOWER_SHIFT,
    OLDEST_SHIFT,
    Entries,
    EntrySource,
    no_entries,
    starts_of,
)

Counts = NDArray[np.int64]


@dataclass
class Survey:
    """What a pass found.

    num_pairs: Pairs of n-gram and follower. occurrences: Sum of all counts.
    top: The most frequent n-grams, token ids; counts: how often each occurred.
    """

    num_ngrams: int = 0
    num_pairs: int = 0
    occurrences: int = 0
    top: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    counts: Counts = field(default_factory=lambda: np.empty(0, np.int64))


def survey(source: EntrySource, size: int, most: int) -> Survey:
    """Read all entries of an n-gram size.

    Args:
        source: The entries, such as Statistics.sources()[size].
        size: Tokens of an n-gram, 1..4.
        most: N-grams to return in `top`; of equally frequent ones the smaller ids come first.

    Cost: O(entries); memory for a chunk of them and `most` n-grams.
    """
    summary = Survey()
    best, counts = no_entries(), np.empty(0, np.int64)
    held = no_entries()  # the last n-gram of a chunk may continue in the next
    while len(entries := source.read()):
        entries = np.concatenate([held, entries])
        starts = starts_of(entries, OLDEST_SHIFT)
        whole, held = entries[: starts[-1]], entries[starts[-1] :]
        best, counts = _add(summary, whole, best, counts, most)
    best, summary.counts = _add(summary, held, best, counts, most)
    summary.top = tokens_of(np.ascontiguousarray(best), size)[:, :size]
    return summary


def _add(
    summary: Survey, entries: Entries, best: Entries, counts: Counts, most: int
) -> tuple[Entries, Counts]:
    """Count whole n-grams; return the most frequent ones so far, one entry each."""
    if not len(entries):
        return best, counts
    starts = starts_of(entries, OLDEST_SHIFT)
    new = np.add.reduceat((entries[:, 1] & COUNT_MASK).astype(np.int64), starts)
    summary.num_ngrams += len(starts)
    summary.num_pairs += len(starts_of(entries, FOLLOWER_SHIFT))  # a large count is several entries
    summary.occurrences += int(new.sum())
    keys = entries[starts]
    if len(counts) == most and most:
        chosen = new >= counts[-1]
        keys, new = keys[chosen], new[chosen]
    best, counts = np.concatenate([best, keys]), np.concatenate([counts, new])
    if len(counts) > most > 0:  # sort only those that can stay
        chosen = counts >= np.partition(counts, len(counts) - most)[len(counts) - most]
        best, counts = best[chosen], counts[chosen]
    order = np.lexsort((best[:, 1], best[:, 0], -counts))[:most]
    return best[order], counts[order]
