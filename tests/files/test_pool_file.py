"""Pools made of counted n-grams against plain dicts, and against a pool that learned them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.statistics as slow
from helpers.backends import int32
from helpers.statistics_files import Chunks, tally_of
from ngramspec import HashPool, open_pool
from ngramspec._native.files.entries import EntryMerger
from ngramspec._native.files.image import PoolImage
from ngramspec.files.cache_file import Origin
from ngramspec.files.container import open_container
from ngramspec.files.entries import ArraySource, Entries
from ngramspec.files.pool_file import PoolShape, cells_of, check_pool, write_pool

CELL_BITS = 10
CAPACITY = 1 << CELL_BITS
CHECK_BITS = st.sampled_from([0, 1, 5, 8])
TOKENS = st.one_of(st.integers(0, 3), st.sampled_from([0, 1 << 20, 2**21 - 1]), st.integers(0, 99))
TEXTS = st.lists(st.lists(TOKENS, max_size=40), max_size=4)


def large_texts(seed: int, length: int) -> list[list[int]]:
    """Texts with more n-grams than a pool has cells."""
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.zipf(1.3, length), 5000).tolist() for _ in range(3)]


def pool_over(cells: np.ndarray, check_bits: int) -> HashPool:
    """A pool that works in given cells."""
    counters = np.zeros(5, np.int64)
    counters[0] = np.count_nonzero(cells)
    return HashPool(CAPACITY, check_bits, 0.95, cells=cells, counters=counters)


def cells_from(entries: Entries, check_bits: int, max_occupancy: float = 0.95) -> list[int]:
    image = PoolImage(CELL_BITS, check_bits, max_occupancy)
    image.feed(entries)
    return image.finish().tolist()


@given(texts=TEXTS, n_match=st.integers(1, 5), check_bits=CHECK_BITS)
def test_hashed_counts_are_those_of_the_reference(
    texts: list[list[int]], n_match: int, check_bits: int
) -> None:
    counts: Counter[slow.Continuation] = Counter()
    for a, b in tally_of(texts).hashed(n_match, CELL_BITS, check_bits).tolist():
        check = a << CELL_BITS & 2**64 - 1
        assert check << check_bits & 2**64 - 1 == 0
        counts[a >> 64 - CELL_BITS, check >> 64 - check_bits, b >> 22] += b & 2**22 - 1
    assert counts == slow.continuations(texts, n_match, CELL_BITS, check_bits)


@pytest.mark.parametrize("max_occupancy", [0.0005, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("check_bits", [0, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_an_image_is_the_same_for_any_parts_and_order(
    seed: int, check_bits: int, max_occupancy: float
) -> None:
    texts = large_texts(seed, [150, 700, 4000][seed])
    counts = slow.continuations(texts, 3, CELL_BITS, check_bits)
    expected = slow.pool_cells(counts, CELL_BITS, max_occupancy)
    whole = tally_of(texts).hashed(3, CELL_BITS, check_bits)
    assert cells_from(whole, check_bits, max_occupancy) == expected
    parts = [tally_of([text]).hashed(3, CELL_BITS, check_bits) for text in reversed(texts)]
    shape = PoolShape(3, CAPACITY, check_bits, max_occupancy)
    merger = EntryMerger([Chunks(part, [97, 5]) for part in parts])
    assert cells_of(merger, shape).tolist() == expected
    assert np.count_nonzero(expected) <= int(CAPACITY * max_occupancy)


@given(
    counts=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)),
        st.sampled_from([1, 2, 3, 4, 5, 2**22 - 1, 2**22, 2**31 - 1]),
        max_size=30,
    ),
    room=st.integers(0, 5),
)
def test_an_image_keeps_the_most_frequent_continuations(
    counts: dict[slow.Continuation, int], room: int
) -> None:
    words = []
    for (cell, check, token), count in sorted(counts.items()):
        full, rest = divmod(count, 2**22 - 1)
        for part in [2**22 - 1] * full + [rest] * bool(rest):
            words.append((cell << 54 | check << 52, token << 22 | part))
    entries = np.array(words, np.uint64).reshape(-1, 2)
    max_occupancy = (room + 0.5) / CAPACITY
    expected = slow.pool_cells(counts, CELL_BITS, max_occupancy)
    shape = PoolShape(3, CAPACITY, 2, max_occupancy)
    assert cells_of(ArraySource(entries), shape).tolist() == expected


@given(texts=TEXTS, n_match=st.integers(1, 5), check_bits=CHECK_BITS)
def test_lookups_return_the_most_frequent_continuation(
    texts: list[list[int]], n_match: int, check_bits: int
) -> None:
    counts = slow.continuations(texts, n_match, CELL_BITS, check_bits)
    entries = tally_of(texts).hashed(n_match, CELL_BITS, check_bits)
    cells = np.array(cells_from(entries, check_bits), np.uint32)
    pool = pool_over(cells, check_bits)
    assert pool.check() == ""
    words = slow.pool_cells(counts, CELL_BITS, 0.95)
    for tokens in texts:
        for i in range(n_match, len(tokens)):
            ngram = tokens[i - n_match : i]
            hashed = slow.ngram_hash(tuple(ngram))
            word = words[hashed % CAPACITY]
            is_stored = word >> 22 & 0xFF == hashed >> 64 - check_bits
            assert pool.lookup(int32(ngram)) == (word & 0x3FFFFF) - 1 if is_stored else -1


@given(texts=TEXTS, n_match=st.integers(1, 4))
def test_an_image_equals_a_pool_that_learned_the_same(texts: list[list[int]], n_match: int) -> None:
    """Where no cell had two continuations, the order of learning does not matter."""
    counts = slow.continuations(texts, n_match, CELL_BITS, 8)
    single = {cell for cell, n in Counter(cell for cell, _, _ in counts).items() if n == 1}
    learned = pool_over(np.zeros(CAPACITY, np.uint32), 8)
    for tokens in texts:
        for i in range(n_match, len(tokens)):
            learned.insert(int32(tokens[i - n_match : i]), tokens[i])
    image = pool_over(
        np.array(cells_from(tally_of(texts).hashed(n_match, CELL_BITS, 8), 8), np.uint32), 8
    )
    assert image.num_used == learned.num_used
    for tokens in texts:
        for i in range(n_match, len(tokens)):
            ngram = int32(tokens[i - n_match : i])
            if learned.index_of(ngram) in single:
                assert image.lookup(ngram) == learned.lookup(ngram) == tokens[i]
    alike = np.isin(np.arange(CAPACITY), list(single))
    assert np.array_equal(image.entries()[alike], learned.entries()[alike])


@given(texts=TEXTS, check_bits=CHECK_BITS)
def test_a_pool_file_holds_its_cells(texts: list[list[int]], check_bits: int) -> None:
    cells = np.array(cells_from(tally_of(texts).hashed(2, CELL_BITS, check_bits), check_bits))
    shape = PoolShape(2, CAPACITY, check_bits, 0.5)
    with TemporaryDirectory() as folder:
        path, copy = Path(folder) / "a.pool", Path(folder) / "b.pool"
        for target in (path, copy):
            header = write_pool(target, cells.astype(np.uint32), shape, Origin(None, 2**21))
        assert path.read_bytes() == copy.read_bytes()
        assert header.num_pairs == np.count_nonzero(cells)
        check_pool(open_container(path))
        pool = open_pool(path, n_match=2)
        assert (pool.in_file, pool.check_bits, pool.max_occupancy) == (True, check_bits, 0.5)
        assert pool.num_used == np.count_nonzero(cells)
        assert pool.check() == ""
        assert pool.entries().tolist() == ((cells & 0x3FFFFF).astype(int) - 1).tolist()
        pool.insert(int32([7, 7]), 3)
        assert open_pool(path).lookup(int32([7, 7])) == 3
