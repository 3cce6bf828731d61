"""Streams of packed entries: sorted pairs of n-gram and follower with counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Entries = NDArray[np.uint64]  # shape (n, 2), ascending
OnRead = Callable[[int], object]  # told how many more entries were read
# The second word of an entry: the oldest token of the n-gram, its follower, the count.
OLDEST_SHIFT = np.uint64(43)
FOLLOWER_SHIFT = np.uint64(22)
COUNT_MASK = np.uint64(0x3FFFFF)
CHUNK = 1 << 16  # entries read at a time: 1 MiB


class EntrySource(Protocol):
    """A stream of entries, ascending within and across calls."""

    def read(self) -> Entries:
        """Return the next entries, an empty array at the end."""
        ...


class ArraySource:
    """A stream of entries in memory."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._at = 0

    def read(self) -> Entries:
        """Return the next entries, views of the array."""
        taken = self._entries[self._at : self._at + CHUNK]
        self._at += len(taken)
        return taken


class WatchedSource:
    """WatchedSource(source, on_read): tells how many entries are read."""

    def __init__(self, source: EntrySource, on_read: OnRead) -> None:
        self._source = source
        self._on_read = on_read

    def read(self) -> Entries:
        entries = self._source.read()
        self._on_read(len(entries))
        return entries


def ignored(number: int) -> None:
    """Do nothing with a number of entries."""


def no_entries() -> Entries:
    return np.empty((0, 2), dtype=np.uint64)


def read_all(source: EntrySource) -> Entries:
    """Return what is left in a stream as one array."""
    parts = []
    while len(part := source.read()):
        parts.append(part)
    return np.concatenate(parts) if parts else no_entries()


def starts_of(entries: Entries, shift: np.uint64) -> NDArray[np.intp]:
    """Return where each n-gram (OLDEST_SHIFT) or pair with a follower (FOLLOWER_SHIFT) begins."""
    a, b = entries[:, 0], entries[:, 1] >> shift
    return np.flatnonzero(np.r_[True, (a[1:] != a[:-1]) | (b[1:] != b[:-1])][: len(a)])
