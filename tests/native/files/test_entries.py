"""Counting, merging and subtracting of entries against plain dicts."""

from __future__ import annotations

import weakref
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.statistics as slow
from helpers.statistics_files import (
    ENTRY_COUNT_MAX,
    LARGEST_TOKEN,
    SIZES,
    Chunks,
    counts_of,
    entries_of,
    tally_of,
)
from helpers.texts import COUNT_MAX, Documents, counts, documents
from ngramspec._native.files.entries import EntryMerger, Tally, entries_beyond
from ngramspec.errors import CapacityError, InputError
from ngramspec.files.entries import ArraySource, read_all
from ngramspec.lab.builder.runs import LateSource


@given(texts=documents())
def test_a_tally_counts_what_followed_each_ngram(texts: Documents) -> None:
    tally = tally_of(texts)
    assert len(tally) == sum(len(tokens) + 1 for tokens in texts if tokens)
    for size in SIZES:
        assert counts_of(tally.ngrams(size), size) == slow.count_pairs(texts, size)
    tally.clear()
    assert len(tally) == len(tally.ngrams(2)) == 0


@pytest.mark.parametrize("most", [1, 2, 10, 11])
def test_a_tally_holds_no_more_than_it_can_count(most: int) -> None:
    """Its bound is that of its 32-bit places unless a lower one is given."""
    assert Tally().max_tokens == 2**32 - 1
    tally, held = Tally(most), 0
    for length in (1, 3, 1, 4, 1, 2, 1):
        text = np.arange(length, dtype=np.int32)
        if held + length + 1 > most:
            with pytest.raises(CapacityError, match=f"holds {most} tokens at most"):
                tally.add(text)
        else:
            tally.add(text)
            held += length + 1
        assert len(tally) == held
    tally.clear()
    if most > 1:
        tally.add(np.zeros(most - 1, np.int32))
        assert len(tally) == most


@pytest.mark.parametrize("most", [0, -1, 2**32])
def test_a_tally_checks_its_bound(most: int) -> None:
    with pytest.raises(InputError, match="max_tokens must be in"):
        Tally(most)


SKEWS = {
    "one token": lambda rng, n: np.zeros(n),
    "two in turn": lambda rng, n: np.arange(n) % 2 * LARGEST_TOKEN,
    "a few often": lambda rng, n: np.minimum(rng.zipf(1.3, n), 50_000),
    "all alike": lambda rng, n: rng.integers(0, LARGEST_TOKEN + 1, n),
    "top bits alike": lambda rng, n: rng.integers(0, 3, n) + (1 << 20),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("skew", SKEWS)
def test_a_sort_of_many_entries_keeps_every_pair(skew: str, size: int) -> None:
    rng = np.random.default_rng(size)
    for length in (47, 50, 4100, 8200, *[60_000] * (size in (SIZES[0], SIZES[-1]))):
        text = SKEWS[skew](rng, length).astype(np.int32)
        tally = tally_of([text])
        assert counts_of(tally.ngrams(size), size) == slow.count_pairs([text.tolist()], size)


@pytest.mark.parametrize("size", SIZES)
def test_a_pair_may_come_more_often_than_one_entry_can_say(size: int) -> None:
    often = ENTRY_COUNT_MAX + 2
    entries = tally_of([np.full(often + size, 3)]).ngrams(size)
    assert counts_of(entries, size) == {(3,) * (size + 1): often}


@given(size=st.sampled_from(SIZES), data=st.data())
def test_merging_adds_up_whatever_the_parts_and_their_order(size: int, data: st.DataObject) -> None:
    parts = data.draw(st.lists(counts(size), max_size=5))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    min_count = data.draw(st.sampled_from([1, 1, 2, 3, 6, ENTRY_COUNT_MAX, COUNT_MAX]))
    order = data.draw(st.permutations(range(len(parts))))
    merged = [
        read_all(EntryMerger([make(entries_of(parts[i], size)) for i in numbers], min_count))
        for numbers, make in (
            (range(len(parts)), ArraySource),
            (order, lambda entries: Chunks(entries, lengths)),
        )
    ]
    assert counts_of(merged[0], size) == slow.merged(parts, min_count)
    assert np.array_equal(*merged)


@given(times=st.integers(1, 5), again=st.integers(1, 3))
def test_merged_counts_stop_at_the_largest_one(times: int, again: int) -> None:
    part = Counter({(1, 2): COUNT_MAX - 1, (1, 3): 2, (4, 4): COUNT_MAX})
    twice = [[ArraySource(entries_of(part, 1)) for _ in range(2)] for _ in range(times)]
    streams = [*map(EntryMerger, twice), *(ArraySource(entries_of(part, 1)) for _ in range(again))]
    totals = counts_of(read_all(EntryMerger(streams)), 1)
    assert totals == slow.merged([part] * (2 * times + again))
    assert totals[1, 2] == totals[4, 4] == COUNT_MAX


@pytest.mark.parametrize("max_entries", [1, 1024, 1500, 1 << 16])
def test_a_merge_is_the_same_however_it_is_read(max_entries: int) -> None:
    rng = np.random.default_rng(max_entries)
    texts = [rng.integers(0, 30, 4000) for _ in range(7)]
    parts = [tally_of([text]).ngrams(2) for text in texts]
    # Pairs of 513 entries each among the others: at most one more of them fits what is left.
    parts.append(entries_of(Counter({(i, 1, 2): COUNT_MAX for i in range(40)}), 2))
    merger = EntryMerger([Chunks(part, [1000, 17]) for part in parts])
    taken = []
    while len(entries := merger.read(max_entries)):
        assert len(entries) <= max(1024, max_entries)
        taken.append(entries)
    assert len(merger.read(max_entries)) == 0
    expected = slow.merged([counts_of(part, 2) for part in parts])
    assert counts_of(np.concatenate(taken), 2) == expected


@given(size=st.sampled_from(SIZES), data=st.data())
def test_entries_beyond_others_are_the_difference(size: int, data: st.DataObject) -> None:
    first = data.draw(counts(size))
    second = Counter(data.draw(counts(size)))
    if first and data.draw(st.booleans()):  # the usual case: the second one is older
        chosen = data.draw(st.sets(st.sampled_from(sorted(first))))
        second = Counter({pair: max(1, first[pair] - 1) for pair in chosen})
    difference = entries_beyond(entries_of(first, size), entries_of(second, size))
    assert counts_of(difference, size) == slow.beyond(first, second)


def test_a_merge_that_has_ended_holds_nothing_of_its_sources() -> None:
    refs = []

    def make() -> ArraySource:
        entries = tally_of([[1, 2, 3] * 9]).ngrams(2).copy()
        refs.append(weakref.ref(entries))
        return ArraySource(entries)

    merger = EntryMerger([LateSource(make)])
    assert len(read_all(merger)) == 3
    assert refs[0]() is None
