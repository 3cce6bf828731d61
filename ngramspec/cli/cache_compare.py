"""Two statistics files side by side, in one pass and bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.formats.entries import Entries, EntrySource, no_entries

FOLLOWER_SHIFT = np.uint64(22)
OLDEST_SHIFT = np.uint64(43)
COUNT_MASK = np.uint64(0x3FFFFF)


@dataclass
class Difference:
    """How the n-grams of one size differ.

    largest: Entries of the n-grams whose counts differ most. by: how much in all followers.
    counts: of these n-grams in the two files.
    """

    equal: int = 0
    only_first: int = 0
    only_second: int = 0
    differing: int = 0
    largest: Entries = field(default_factory=no_entries)
    by: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def is_none(self) -> bool:
        """Whether all n-grams, followers and counts are equal."""
        return not (self.only_first or self.only_second or self.differing)


class _Stream:
    """Entries of one file, read ahead as far as needed."""

    def __init__(self, source: EntrySource) -> None:
        self._source = source
        self.entries = no_entries()
        self.ended = False

    def fill(self) -> None:
        """Read on if there is nothing at hand, or nothing but one n-gram that may go on."""
        while not self.ended and (not len(self.entries) or self._whole() == 0):
            more = self._source.read()
            self.ended = not len(more)
            self.entries = np.concatenate([self.entries, more])

    def last_whole(self) -> tuple[int, int] | None:
        """Return the key up to which n-grams are at hand with all their followers, None = all."""
        if self.ended:
            return None
        last = self.entries[self._whole() - 1]
        return int(last[0]), int(last[1] >> OLDEST_SHIFT)

    def take(self, end: tuple[int, int] | None) -> Entries:
        """Return the entries of all n-grams up to a key, and drop them here."""
        num = len(self.entries)
        if end is not None:
            a, oldest = self.entries[:, 0], self.entries[:, 1] >> OLDEST_SHIFT
            key = np.uint64(end[0])
            num = int(np.count_nonzero((a < key) | ((a == key) & (oldest <= np.uint64(end[1])))))
        taken, self.entries = self.entries[:num], self.entries[num:]
        return taken

    def _whole(self) -> int:
        """Return how many entries are in front of the last n-gram."""
        a, oldest = self.entries[:, 0], self.entries[:, 1] >> OLDEST_SHIFT
        return int(np.count_nonzero((a != a[-1]) | (oldest != oldest[-1])))


def compare(first: EntrySource, second: EntrySource, most: int) -> Difference:
    """Compare all n-grams of a size; keep the `most` largest differences."""
    made = Difference()
    streams = _Stream(first), _Stream(second)
    while True:
        for stream in streams:
            stream.fill()
        if not any(len(stream.entries) for stream in streams):
            return made
        ends = [end for stream in streams if (end := stream.last_whole()) is not None]
        end = min(ends, default=None)
        _compare_block(made, streams[0].take(end), streams[1].take(end), most)


def _compare_block(made: Difference, one: Entries, other: Entries, most: int) -> None:
    """Compare entries of the same range of n-grams."""
    entries = np.concatenate([one, other])
    if not len(entries):
        return
    counts = np.zeros((len(entries), 2), np.int64)
    counts[: len(one), 0] = one[:, 1] & COUNT_MASK
    counts[len(one) :, 1] = other[:, 1] & COUNT_MASK
    order = np.lexsort((entries[:, 1] >> FOLLOWER_SHIFT, entries[:, 0]))
    entries, counts = entries[order], counts[order]
    pairs = entries[:, 1] >> FOLLOWER_SHIFT
    starts = _starts(entries[:, 0], pairs)
    entries, counts = entries[starts], np.add.reduceat(counts, starts)
    apart = np.abs(counts[:, 0] - counts[:, 1])
    starts = _starts(entries[:, 0], entries[:, 1] >> OLDEST_SHIFT)
    entries, counts = entries[starts], np.add.reduceat(counts, starts)
    apart = np.add.reduceat(apart, starts)
    only_first, only_second = counts[:, 1] == 0, counts[:, 0] == 0
    made.only_first += int(only_first.sum())
    made.only_second += int(only_second.sum())
    made.differing += int(np.count_nonzero(apart[~only_first & ~only_second]))
    made.equal += int(np.count_nonzero(apart == 0))
    _keep_largest(made, entries[apart > 0], apart[apart > 0], counts[apart > 0], most)


def _starts(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.intp]:
    return np.flatnonzero(np.r_[True, (a[1:] != a[:-1]) | (b[1:] != b[:-1])])


def _keep_largest(
    made: Difference, entries: Entries, by: Any, counts: NDArray[np.int64], most: int
) -> None:
    entries, by = np.concatenate([made.largest, entries]), np.concatenate([made.by, by])
    counts = np.concatenate([made.counts, counts])
    if len(by) > most > 0:
        chosen = by >= np.partition(by, len(by) - most)[len(by) - most]
        entries, by, counts = entries[chosen], by[chosen], counts[chosen]
    order = np.lexsort((entries[:, 1], entries[:, 0], -by))[:most]
    made.largest, made.by, made.counts = entries[order], by[order], counts[order]
