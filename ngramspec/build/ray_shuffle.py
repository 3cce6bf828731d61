"""Combine the results of many shards: duplicates, merging in a tree, ranges in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ngramspec.build.ray_tasks import Digests, Numbers
from ngramspec.formats.entries import ArraySource, Entries, no_entries

FAN_IN = 32  # arrays of a bucket that are merged into one
AHEAD = 4  # buckets that are merged while one is written
SLICES = 16  # of the digests, compared one after another
Ref = Any


def find_duplicates(digests: Sequence[Digests]) -> list[Numbers]:
    """Find the documents that occurred before.

    Args:
        digests: Those of every shard, in order.

    Returns:
        list: For every shard the numbers of the documents to leave out, ascending.

    Cost: 0.3 us per document; 5 bytes per document in addition to `digests`.
    """
    found: list[list[Numbers]] = [[] for _ in digests]
    for value in range(SLICES):
        at = [np.flatnonzero(each[:, 0] >> np.uint64(60) == value) for each in digests]
        shards = np.repeat(np.arange(len(digests)), [*map(len, at)])
        numbers = np.concatenate([*at, np.empty(0, np.int64)])
        rows = np.concatenate([each[i] for each, i in zip(digests, at, strict=True)] or [_NONE])
        order = np.lexsort((rows[:, 1], rows[:, 0]))  # stable: equal ones stay in order
        rows = rows[order]
        again = order[1:][(rows[1:] == rows[:-1]).all(axis=1)]
        again.sort()
        bounds = np.searchsorted(shards[again], np.arange(len(digests) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            found[i].append(numbers[again[bounds[i] : bounds[i + 1]]])
    return [np.sort(np.concatenate([*each, np.empty(0, np.int64)])) for each in found]


class MergeTree:
    """MergeTree(merge): the buckets of all shards, merged when a level has FAN_IN of them.

    So every entry is copied log(shards) / log(FAN_IN) times, and no more than FAN_IN references
    per bucket and level are alive.

    Args:
        merge: Starts a task that merges referenced entries; returns a reference to the result.
    """

    def __init__(self, merge: Callable[[list[Ref]], Ref]) -> None:
        self._merge = merge
        self._levels: list[list[list[Ref]]] = []

    def add(self, buckets: list[Ref], level: int = 0) -> None:
        """Add the buckets of a shard; its task may still be running."""
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(buckets)
        if len(self._levels[level]) == FAN_IN:
            group, self._levels[level] = self._levels[level], []
            merged = [self._merge(list(same)) for same in zip(*group, strict=True)]
            self.add(merged, level + 1)

    def take(self, bucket: int) -> list[Ref]:
        """Remove and return the references of a bucket."""
        taken = []
        for level in self._levels:
            for buckets in level:
                taken.append(buckets[bucket])
                buckets[bucket] = None
        return taken

    def refs(self) -> list[Ref]:
        """Return all references."""
        found = [ref for level in self._levels for buckets in level for ref in buckets]
        return [ref for ref in found if ref is not None]


class BucketSource:
    """BucketSource(buckets, start, get): buckets as one stream of entries.

    Args:
        buckets: Their numbers, in order.
        start: Starts the merge of a bucket; returns its reference.
        get: Waits for a reference; returns its entries.
    """

    def __init__(
        self, buckets: Sequence[int], start: Callable[[int], Ref], get: Callable[[Ref], Entries]
    ) -> None:
        self._left = deque(buckets)
        self._start = start
        self._get = get
        self._started: deque[Ref] = deque()
        self._source = ArraySource(no_entries())

    def read(self) -> Entries:
        """Return the next entries, an empty array at the end."""
        while not len(entries := self._source.read()):
            while self._left and len(self._started) < AHEAD:
                self._started.append(self._start(self._left.popleft()))
            if not self._started:
                break
            self._source = ArraySource(self._get(self._started.popleft()))
        return entries


_NONE = np.empty((0, 2), np.uint64)
