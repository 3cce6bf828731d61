"""Between packed entries, what statistics files are made of, and the plain counts of the twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from helpers.backends import int32
from ngramspec import StaticCache, SuccessorPool
from ngramspec._native.cache.ngram_cache import entries_of_records
from ngramspec._native.files.entries import EntryReader, Tally, tokens_of
from ngramspec.files.cache_file import check_tokenizer
from ngramspec.files.container import open_container
from ngramspec.files.entries import ArraySource, Entries, read_all
from ngramspec.files.successor_file import pool_of
from reference.statistics import Counts, Pair, by_ngram

ENTRY_COUNT_MAX = 2**22 - 1
LARGEST_TOKEN = 2**21 - 1
SIZES = (1, 2, 3, 4)
Sizes = dict[int, Counts]


class Chunks:
    """A stream that hands out entries in parts of given lengths, over and over."""

    def __init__(self, entries: Entries, lengths: Sequence[int]) -> None:
        self._entries = entries
        self._lengths = lengths
        self._at = self._part = 0

    def read(self) -> Entries:
        length = self._lengths[self._part % len(self._lengths)]
        taken = self._entries[self._at : self._at + length]
        self._at += length
        self._part += 1
        return taken


def tally_of(documents: Iterable[Sequence[int]]) -> Tally:
    tally = Tally()
    for tokens in documents:
        tally.add(int32(list(tokens)))
    return tally


def records_of(counts: Mapping[Pair, int]) -> np.ndarray:
    """llama.cpp's records of counts."""
    words: list[int] = []
    for ngram, followers in sorted(by_ngram(counts).items()):
        words += [*ngram, *[-1] * (4 - len(ngram)), len(followers)]
        for token in sorted(followers):
            words += [token, followers[token]]
    return int32(words)


def counts_of_records(records: np.ndarray) -> Counts:
    counts: Counts = Counter()
    words, at = records.tolist(), 0
    while at < len(words):
        ngram = tuple(token for token in words[at : at + 4] if token >= 0)
        pairs = words[at + 5 : at + 5 + 2 * words[at + 4]]
        for token, count in zip(pairs[0::2], pairs[1::2], strict=True):
            counts[(*ngram, token)] += count
        at += 5 + len(pairs)
    return counts


def entries_of(counts: Mapping[Pair, int], size: int) -> Entries:
    return entries_of_records(records_of(counts), size)


def counts_of(entries: Entries, size: int) -> Counts:
    """What entries stand for, checked to be sorted and as few as can be."""
    keys = [(int(a), int(b) >> 22) for a, b in entries]
    counts = [int(b) & ENTRY_COUNT_MAX for _, b in entries]
    assert keys == sorted(keys)
    assert min(counts, default=1) > 0
    for i in range(1, len(keys)):
        assert keys[i] != keys[i - 1] or counts[i - 1] == ENTRY_COUNT_MAX
    total: Counts = Counter()
    for *pair, count in tokens_of(entries, size).tolist():
        total[tuple(pair)] += count
    assert len(total) == len(set(keys))
    return total


def sources_of(sizes: Mapping[int, Mapping[Pair, int]]) -> dict[int, ArraySource]:
    return {size: ArraySource(entries_of(counts, size)) for size, counts in sizes.items()}


def sizes_of(cache: StaticCache) -> Sizes:
    """All counts of a cache by size, those of no n-gram left out."""
    sizes = {size: counts_of(read_all(EntryReader(cache, size)), size) for size in SIZES}
    return {size: counts for size, counts in sizes.items() if counts}


def file_order(cache: StaticCache) -> list[tuple[int, ...]]:
    """The n-grams of a cache in the order of the file, sizes ascending."""
    order: dict[tuple[int, ...], None] = {}
    for size in SIZES:
        for *ngram, _, _ in tokens_of(read_all(EntryReader(cache, size)), size).tolist():
            order[tuple(ngram)] = None
    return list(order)


def open_successors(
    path: Path, fingerprint: bytes | None = None, any_tokenizer: bool = False
) -> SuccessorPool:
    """The pool of a file of kind successors."""
    container = open_container(path, "successors", verify=True)
    check_tokenizer(container, fingerprint, any_tokenizer)
    return pool_of(container)
