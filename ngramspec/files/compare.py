"""Compare two statistics files in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.files.entries import tokens_of
from ngramspec.errors import InputError
from ngramspec.files.entries import (
    COUNT_MASK,
    FOLLOWER_SHIFT,
    OLDEST_SHIFT,
    ArraySource,
    Entries,
    EntrySource,
    no_entries,
    starts_of,
)
from ngramspec.files.statistics import POOL_KIND, Statistics

CELLS = 1 << 20  # pool cells compared at a time
STATED = ("kind", "version", "producer", "fingerprint", "vocab_size")  # fields of a header
Counts = NDArray[np.int64]


@dataclass
class Difference:
    """How the n-grams of one size, or the cells of pools, differ.

    differing: N-grams in both files with different followers or counts; cells used in both with
        different contents.
    largest, by, counts: Entries of the n-grams that differ most, their differences summed over all
        followers, and their counts in the two files; empty for pools.
    """

    equal: int = 0
    only_first: int = 0
    only_second: int = 0
    differing: int = 0
    largest: Entries = field(default_factory=no_entries)
    by: Counts = field(default_factory=lambda: np.empty(0, np.int64))
    counts: Counts = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def is_none(self) -> bool:
        """Whether all n-grams, followers and counts, or all cells, are equal."""
        return not (self.only_first or self.only_second or self.differing)

    def ngrams(self, size: int) -> list[dict[str, Any]]:
        """Return token ids, difference and both counts of the largest differences."""
        ids = tokens_of(self.largest, size)[:, :size].tolist()
        return [
            {"token_ids": ngram, "difference": by, "counts": counts}
            for ngram, by, counts in zip(ids, self.by.tolist(), self.counts.tolist(), strict=True)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "equal": self.equal,
            "only_a": self.only_first,
            "only_b": self.only_second,
            "differing": self.differing,
        }


def compare_ngrams(first: Statistics, second: Statistics, most: int = 10) -> dict[int, Difference]:
    """Compare the n-grams of two files, for every size that either has.

    Args:
        first, second: Files that hold n-grams.
        most: How many of the largest differences to keep for each size.

    Cost: O(entries); memory for a few chunks of entries.
    """
    sources = first.sources(), second.sources()
    sizes = sorted(set(sources[0]) | set(sources[1]))
    empty = ArraySource(no_entries())
    a, b = sources
    return {size: compare_entries(a.get(size, empty), b.get(size, empty), most) for size in sizes}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two files.

    header: Header fields that differ: both values by name. Only fingerprints that are both known
        count for `equal`.
    shape: The same for the shapes of pools.
    sizes: Differences of n-grams, by size. cells: Differences of pools.
    """

    paths: tuple[str, str]
    header: Mapping[str, Sequence[Any]]
    same_tokenizer: bool
    shape: Mapping[str, Sequence[Any]]
    sizes: Mapping[int, Difference]
    cells: Difference | None

    @property
    def equal(self) -> bool:
        """Whether the statistics, and the tokenizers if known, are the same."""
        parts = [*self.sizes.values(), *([self.cells] if self.cells is not None else [])]
        return self.same_tokenizer and not self.shape and all(part.is_none for part in parts)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        facts: dict[str, Any] = {"paths": list(self.paths), "header": dict(self.header)}
        if self.cells is not None:
            facts["cells"] = {"shape": dict(self.shape), **self.cells.as_json()}
        else:
            facts["sizes"] = [
                {"size": size, **difference.as_json(), "largest": difference.ngrams(size)}
                for size, difference in self.sizes.items()
            ]
        return facts | {"equal": self.equal}


def compare_statistics(first: Statistics, second: Statistics, most: int = 10) -> Comparison:
    """Compare two statistics files.

    Args:
        first, second: Both files of n-grams, or both pools.
        most: How many of the largest differences to keep for each n-gram size.

    Raises:
        InputError: An index, or a pool and a file of n-grams.

    Cost: O(entries) or O(cells); memory for a few chunks of them.
    """
    for one in (first, second):
        one.need_statistics("compare")
    is_pool = first.kind == POOL_KIND
    if is_pool != (second.kind == POOL_KIND):
        raise InputError(
            f"{first.path} is a {first.kind}, {second.path} is a {second.kind}: a pool can only be "
            "compared with a pool"
        )
    fingerprints = {one.fingerprint for one in (first, second) if one.fingerprint is not None}
    shape = shape_differences(first, second) if is_pool else {}
    cells = Difference() if shape else compare_pools(first, second) if is_pool else None
    return Comparison(
        (str(first.path), str(second.path)),
        _header_differences(first, second),
        len(fingerprints) < 2,
        shape,
        {} if is_pool else compare_ngrams(first, second, most),
        cells,
    )


def _header_differences(first: Statistics, second: Statistics) -> dict[str, list[Any]]:
    a, b = (_stated(one) for one in (first, second))
    keys = a if first.container and second.container else ("kind", "fingerprint")
    return {key: [a[key], b[key]] for key in keys if a[key] != b[key]}


def _stated(statistics: Statistics) -> dict[str, Any]:
    header = statistics.container.header if statistics.container is not None else None
    stated = {name: getattr(header, name, None) for name in STATED} | {"kind": statistics.kind}
    stated["fingerprint"] = statistics.fingerprint.hex() if statistics.fingerprint else None
    return stated | {"about": statistics.about or None}


def shape_differences(first: Statistics, second: Statistics) -> dict[str, list[Any]]:
    """Return what differs in the shapes of two pools: both values by name."""
    shapes = vars(first.shape), vars(second.shape)
    return {
        name: [mine, shapes[1][name]] for name, mine in shapes[0].items() if mine != shapes[1][name]
    }


def compare_pools(first: Statistics, second: Statistics) -> Difference:
    """Compare two pools cell by cell.

    Raises:
        InputError: They differ in shape, so their cells mean different n-grams.
    """
    if other := shape_differences(first, second):
        raise InputError(f"{first.path} and {second.path} differ in {', '.join(other)}")
    difference, cells = Difference(), (first.cells, second.cells)
    for at in range(0, len(cells[0]), CELLS):
        a, b = (some[at : at + CELLS] for some in cells)
        difference.equal += int(np.count_nonzero((a == b) & (a != 0)))
        difference.only_first += int(np.count_nonzero((a != 0) & (b == 0)))
        difference.only_second += int(np.count_nonzero((a == 0) & (b != 0)))
        difference.differing += int(np.count_nonzero((a != b) & (a != 0) & (b != 0)))
    return difference


def compare_entries(first: EntrySource, second: EntrySource, most: int) -> Difference:
    """Compare all n-grams of a size; keep the `most` largest differences."""
    difference = Difference()
    streams = _Stream(first), _Stream(second)
    while True:
        for stream in streams:
            stream.fill()
        if not any(len(stream.entries) for stream in streams):
            return difference
        ends = [end for stream in streams if (end := stream.last_whole()) is not None]
        end = min(ends, default=None)
        _compare_block(difference, streams[0].take(end), streams[1].take(end), most)


class _Stream:
    """Entries of one file, read ahead as far as needed."""

    def __init__(self, source: EntrySource) -> None:
        self._source = source
        self.entries = no_entries()
        self.ended = False

    def fill(self) -> None:
        """Read until at least one complete n-gram is buffered, or to the end."""
        while not self.ended and (not len(self.entries) or self._whole() == 0):
            more = self._source.read()
            self.ended = not len(more)
            self.entries = np.concatenate([self.entries, more])

    def last_whole(self) -> tuple[int, int] | None:
        """Return the key up to which the buffered n-grams are complete, None = all are."""
        if self.ended:
            return None
        last = self.entries[self._whole() - 1]
        return int(last[0]), int(last[1] >> OLDEST_SHIFT)

    def take(self, end: tuple[int, int] | None) -> Entries:
        """Remove and return the entries of all n-grams up to a key, None = all."""
        num = len(self.entries)
        if end is not None:
            a, oldest = self.entries[:, 0], self.entries[:, 1] >> OLDEST_SHIFT
            key = np.uint64(end[0])
            num = int(np.count_nonzero((a < key) | ((a == key) & (oldest <= np.uint64(end[1])))))
        taken, self.entries = self.entries[:num], self.entries[num:]
        return taken

    def _whole(self) -> int:
        """Return the number of entries before the last n-gram."""
        return int(starts_of(self.entries, OLDEST_SHIFT)[-1])


def _compare_block(difference: Difference, one: Entries, other: Entries, most: int) -> None:
    """Compare entries of the same range of n-grams."""
    entries = np.concatenate([one, other])
    if not len(entries):
        return
    counts = np.zeros((len(entries), 2), np.int64)
    counts[: len(one), 0] = one[:, 1] & COUNT_MASK
    counts[len(one) :, 1] = other[:, 1] & COUNT_MASK
    order = np.lexsort((entries[:, 1] >> FOLLOWER_SHIFT, entries[:, 0]))
    entries, counts = entries[order], counts[order]
    starts = starts_of(entries, FOLLOWER_SHIFT)
    entries, counts = entries[starts], np.add.reduceat(counts, starts)
    apart = np.abs(counts[:, 0] - counts[:, 1])
    starts = starts_of(entries, OLDEST_SHIFT)
    entries, counts = entries[starts], np.add.reduceat(counts, starts)
    apart = np.add.reduceat(apart, starts)
    only_first, only_second = counts[:, 1] == 0, counts[:, 0] == 0
    difference.only_first += int(only_first.sum())
    difference.only_second += int(only_second.sum())
    difference.differing += int(np.count_nonzero(apart[~only_first & ~only_second]))
    difference.equal += int(np.count_nonzero(apart == 0))
    _keep_largest(difference, entries[apart > 0], apart[apart > 0], counts[apart > 0], most)


def _keep_largest(
    difference: Difference, entries: Entries, by: Any, counts: Counts, most: int
) -> None:
    entries, by = np.concatenate([difference.largest, entries]), np.concatenate([difference.by, by])
    counts = np.concatenate([difference.counts, counts])
    if len(by) > most > 0:
        chosen = by >= np.partition(by, len(by) - most)[len(by) - most]
        entries, by, counts = entries[chosen], by[chosen], counts[chosen]
    order = np.lexsort((entries[:, 1], entries[:, 0], -by))[:most]
    difference.largest, difference.by, difference.counts = entries[order], by[order], counts[order]
