"""One pass over the n-grams of a size: how many, how often, and the most frequent ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.unpack import tokens_of
from ngramspec.formats.entries import Entries, EntrySource

FOLLOWER_SHIFT = np.uint64(22)
OLDEST_SHIFT = np.uint64(43)
COUNT_MASK = np.uint64(0x3FFFFF)
Keys = NDArray[np.uint64]  # shape (n, 2): an entry without follower and count
Counts = NDArray[np.int64]


@dataclass
class Survey:
    """What a pass found.

    num_pairs: Pairs of n-gram and follower. occurrences: Sum of all counts.
    top: The most frequent n-grams, token ids; counts: how often each came.
    """

    num_ngrams: int = 0
    num_pairs: int = 0
    occurrences: int = 0
    top: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    counts: Counts = field(default_factory=lambda: np.empty(0, np.int64))


def survey(source: EntrySource, size: int, most: int) -> Survey:
    """Read all entries; memory for a chunk of them and `most` n-grams."""
    found = Survey()
    keys, counts = np.empty((0, 2), np.uint64), np.empty(0, np.int64)
    open_key, open_count = keys, 0  # the last n-gram of the chunk before may go on
    last_pair: Any = None
    while len(entries := source.read()):
        found.occurrences += int((entries[:, 1] & COUNT_MASK).sum())
        found.num_pairs += _num_pairs(entries, last_pair)
        last_pair = entries[-1]
        new_keys, new_counts = _by_ngram(entries)
        if len(open_key) and (open_key == new_keys[0]).all():
            new_counts[0] += open_count
        elif len(open_key):
            new_keys = np.concatenate([open_key, new_keys])
            new_counts = np.concatenate([[open_count], new_counts])
        open_key, open_count = new_keys[-1:], int(new_counts[-1])
        found.num_ngrams += len(new_keys) - 1
        keys, counts = _most_frequent(keys, counts, new_keys[:-1], new_counts[:-1], most)
    found.num_ngrams += len(open_key)
    last = np.array([open_count] * len(open_key), np.int64)
    keys, found.counts = _most_frequent(keys, counts, open_key, last, most)
    found.top = tokens_of(np.ascontiguousarray(keys), size)[:, :size]
    return found


def _by_ngram(entries: Entries) -> tuple[Keys, Counts]:
    """Return the n-grams of sorted entries and how often each came."""
    keys = np.column_stack([entries[:, 0], entries[:, 1] >> OLDEST_SHIFT << OLDEST_SHIFT])
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    counts = np.add.reduceat((entries[:, 1] & COUNT_MASK).astype(np.int64), starts)
    return keys[starts], counts


def _num_pairs(entries: Entries, last: Any) -> int:
    """Return how many pairs begin in a chunk; a large count is several entries of one pair."""
    pairs = entries[:, 1] >> FOLLOWER_SHIFT
    same = (entries[1:, 0] == entries[:-1, 0]) & (pairs[1:] == pairs[:-1])
    num = len(entries) - int(np.count_nonzero(same))
    goes_on = (
        last is not None and last[0] == entries[0, 0] and last[1] >> FOLLOWER_SHIFT == pairs[0]
    )
    return num - int(goes_on)


def _most_frequent(
    keys: Keys, counts: Counts, new_keys: Keys, new_counts: Counts, most: int
) -> tuple[Keys, Counts]:
    """Return the `most` most frequent of two sets of n-grams; ties go by key."""
    if len(counts) == most and most:
        chosen = new_counts >= counts[-1]
        new_keys, new_counts = new_keys[chosen], new_counts[chosen]
    keys, counts = np.concatenate([keys, new_keys]), np.concatenate([counts, new_counts])
    if len(counts) > most > 0:  # sort only what can be among them
        chosen = counts >= np.partition(counts, len(counts) - most)[len(counts) - most]
        keys, counts = keys[chosen], counts[chosen]
    order = np.lexsort((keys[:, 1], keys[:, 0], -counts))[:most]
    return keys[order], counts[order]
