"""Statistics files, lookups and pruning against plain dicts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.statistics as slow
from helpers.backends import int32
from helpers.statistics_files import (
    LARGEST_TOKEN,
    SIZES,
    Chunks,
    Sizes,
    counts_of,
    counts_of_records,
    entries_of,
    file_order,
    records_of,
    sizes_of,
    sources_of,
    tally_of,
)
from helpers.texts import COUNT_MAX, Documents, documents, many_sizes
from ngramspec import (
    DynamicFile,
    NgramCache,
    create_drafter,
    open_cache,
    read_lookup_cache,
    write_lookup_cache,
)
from ngramspec._native.cache.ngram_cache import entries_of_records
from ngramspec._native.files.entries import EntryMerger, EntryReader
from ngramspec.errors import CapacityError
from ngramspec.files.cache_file import Origin, cache_in_memory, check_cache, write_cache
from ngramspec.files.entries import ArraySource, read_all
from ngramspec.files.prune import useful_sources, write_pruned


@given(sizes=many_sizes(), min_count=st.sampled_from([1, 1, 2, 4]))
def test_a_file_holds_every_pair_and_no_other(sizes: Sizes, min_count: int) -> None:
    often = {size: slow.merged([pairs], min_count) for size, pairs in sizes.items()}
    with TemporaryDirectory() as folder:
        path, copy = Path(folder) / "first.ngc", Path(folder) / "second.ngc"
        header = write_cache(
            path, sources_of(sizes), Origin(b"0123456789abcdef"), min_count=min_count
        )
        cache = open_cache(path)
        check_cache(cache)
        assert sizes_of(cache) == {size: pairs for size, pairs in often.items() if pairs}
        assert header.num_ngrams == len(cache) == sum(len(slow.by_ngram(p)) for p in often.values())
        assert header.num_pairs == sum(map(len, often.values()))
        assert cache.vocab_size == 1 + max(
            (max(p) for some in often.values() for p in some), default=0
        )
        assert cache.fingerprint == b"0123456789abcdef"
        sources = {size: EntryReader(cache, size) for size in sizes}
        write_cache(copy, sources, Origin(cache.fingerprint))
        assert copy.read_bytes() == path.read_bytes()


@given(sizes=many_sizes())
def test_a_file_is_laid_out_as_documented(sizes: Sizes) -> None:
    cache = cache_in_memory(sources_of(sizes))
    for size, pairs in sizes.items():
        sections = cache.sections(size)
        assert sections is not None
        layout = tuple(np.asarray(words).tolist() for words in sections)
        assert layout == slow.section_words(pairs, size)


@given(sizes=many_sizes(), other=documents())
def test_followers_are_found_in_place(sizes: Sizes, other: Documents) -> None:
    """Known n-grams, neighbours of them, and those of another text."""
    cache = cache_in_memory(sources_of(sizes), LARGEST_TOKEN + 1)
    for size in SIZES:
        pairs = sizes.get(size, Counter())
        asked = {
            ngram
            for pair in [*pairs, *slow.count_pairs(other, size)]
            for ngram in (pair[:-1], pair[1:])
        }
        asked |= {(*ngram[1:], ngram[-1] ^ 1) for ngram in asked}
        assert cache.num_ngrams(size) == len(slow.by_ngram(pairs))
        for ngram in asked:
            followers = list(cache.followers(int32(list(ngram))).items())
            assert followers == list(slow.followers_of(pairs, ngram).items())


@given(
    newest=st.tuples(*[st.integers(0, LARGEST_TOKEN)] * 3),
    oldest=st.sets(st.integers(0, 60), min_size=17, max_size=40),
)
def test_4grams_with_the_same_key_are_told_apart(
    newest: tuple[int, int, int], oldest: set[int]
) -> None:
    """Their oldest tokens and all others differ, yet the mixed words are equal."""
    first = min(oldest)
    x = newest[0] << 42 | newest[1] << 21 | newest[2]
    texts = []
    for token in oldest:
        y = x + (first - token) * 0xA24BAED4963EE407 & 2**63 - 1
        ngram = (token, y >> 42, y >> 21 & LARGEST_TOKEN, y & LARGEST_TOKEN)
        assert slow.key_of(ngram) == (slow.key_of((first, *newest))[0], token)
        texts += [[*ngram, token % 3], [*ngram, 7]]
    pairs = slow.count_pairs(texts, 4)
    entries = tally_of(texts).ngrams(4)
    assert counts_of(entries, 4) == pairs
    with TemporaryDirectory() as folder:
        path = Path(folder) / "alike.ngc"
        write_cache(path, {4: EntryMerger([ArraySource(entries), ArraySource(entries)])}, Origin())
        cache = open_cache(path)
        check_cache(cache)
        assert sizes_of(cache) == {4: pairs + pairs}
        for ngram, followers in slow.by_ngram(pairs + pairs).items():
            assert cache.followers(int32(list(ngram))) == followers
        assert cache.followers(int32([99, *newest])) == {}
        with pytest.raises(CapacityError, match=f"holds {len(oldest)} n-grams"):  # not a single one
            DynamicFile(path, max_ngrams=len(oldest) - 1)


@pytest.mark.parametrize("size", SIZES)
def test_counts_that_were_not_added_up_stop_at_the_largest_one(size: int) -> None:
    pair = (1,) * (size + 1)
    entries = entries_of(Counter({pair: COUNT_MAX}), size)
    twice = np.concatenate([entries, entries])
    cache = cache_in_memory({size: Chunks(twice, [100])})
    assert cache.followers(int32([1] * size)) == {1: COUNT_MAX}


def test_tokens_beyond_what_files_hold_are_not_taken_for_others() -> None:
    """Their upper bits would make the token before them another one."""
    pairs = {2: Counter({(1, 5, 9): 3}), 3: Counter({(1, 1, 5, 9): 3})}
    cache = cache_in_memory(sources_of(pairs), LARGEST_TOKEN + 1)
    beyond = 1 << 21 | 5
    assert cache.followers(int32([1, 5])) == cache.followers(int32([1, 1, 5])) == {9: 3}
    assert cache.followers(int32([0, beyond])) == cache.followers(int32([1, 0, beyond])) == {}
    drafter = create_drafter("ngram-cache", static=cache)
    drafter.begin(0, int32([7, 1, 5]))
    assert drafter.propose(0, 1).tolist() == [9]
    drafter.begin(0, int32([7, 0, beyond]))
    assert drafter.propose(0, 1).tolist() == []


@pytest.mark.parametrize("size", SIZES)
def test_followers_are_found_among_many(size: int, tmp_path: Path) -> None:
    """More records per bucket than a scan looks at, and an index of many words."""
    rng = np.random.default_rng(size)
    text = np.concatenate([rng.integers(0, 5000, 20_000), np.minimum(rng.zipf(1.5, 9000), 90)])
    pairs = slow.count_pairs([text.tolist()], size)
    path = tmp_path / "many.ngc"
    write_cache(path, {size: ArraySource(tally_of([text]).ngrams(size))}, Origin())
    cache = open_cache(path)
    check_cache(cache)
    grouped = slow.by_ngram(pairs)
    assert cache.num_ngrams(size) == len(grouped)
    for ngram, followers in list(grouped.items())[::7]:
        assert cache.followers(int32(list(ngram))) == followers
        other = (*ngram[:-1], ngram[-1] + 5000)
        assert cache.followers(int32(list(other))) == {}


@given(sizes=many_sizes())
def test_entries_caches_and_records_say_the_same(sizes: Sizes) -> None:
    cache = NgramCache()
    for size, pairs in sizes.items():
        cache.add_entries(entries_of(pairs, size), size)
    assert cache.check() == ""
    for size in SIZES:
        pairs = sizes.get(size, Counter())
        assert counts_of(cache.entries(size), size) == pairs
        assert np.array_equal(cache.entries(size), entries_of(pairs, size))
        assert np.array_equal(entries_of_records(cache.records(), size), cache.entries(size))
    everything = slow.merged(sizes.values())
    assert np.array_equal(cache.records(), records_of(everything))
    with TemporaryDirectory() as folder:
        path, copy = Path(folder) / "a.bin", Path(folder) / "b.bin"
        write_lookup_cache(cache, path)
        again = read_lookup_cache(path)
        assert counts_of_records(again.records()) == everything
        write_lookup_cache(again, copy)
        assert copy.read_bytes() == path.read_bytes()


@given(sizes=many_sizes(), data=st.data())
def test_pruning_keeps_the_most_useful_ngrams(sizes: Sizes, data: st.DataObject) -> None:
    cache = cache_in_memory(sources_of(sizes), LARGEST_TOKEN + 1)
    everything, order = slow.merged(sizes.values()), file_order(cache)
    total = sum(slow.record_bytes(len(n), f) for n, f in slow.by_ngram(everything).items())
    budget = data.draw(st.one_of(st.none(), st.integers(0, total + 50)))
    max_ngrams = data.draw(st.one_of(st.none(), st.integers(0, len(order) + 2)))
    for _ in range(2):
        useful = slow.most_useful(
            everything,
            order,
            float("inf") if budget is None else budget,
            float("inf") if max_ngrams is None else max_ngrams,
        )
        sources = useful_sources(cache, max_bytes=budget, max_ngrams=max_ngrams)
        pruned = {size: counts_of(read_all(source), size) for size, source in sources.items()}
        expected = {pair: count for pair, count in everything.items() if pair[:-1] in useful}
        assert slow.merged(pruned.values()) == expected
        # Once more with just the bytes that these need.
        grouped = slow.by_ngram(expected)
        budget = sum(
            slow.record_bytes(len(ngram), followers) for ngram, followers in grouped.items()
        )


@given(sizes=many_sizes(), room=st.integers(0, 4000), about=st.text(max_size=300))
def test_a_pruned_file_is_no_larger_than_asked_for(sizes: Sizes, room: int, about: str) -> None:
    cache = cache_in_memory(sources_of(sizes), LARGEST_TOKEN + 1)
    origin = Origin(None, LARGEST_TOKEN + 1, {"text": about * 20} if about else None)
    least = 1024 + 4 * (3 * 64 + 16)
    least += len(json.dumps(origin.about, ensure_ascii=False).encode()) if about else 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pruned.ngc"
        write_pruned(path, cache, origin, least + room)
        assert path.stat().st_size <= least + room
        pruned = open_cache(path)
        check_cache(pruned)
        whole, left = slow.merged(sizes.values()), slow.merged(sizes_of(pruned).values())
        followers = slow.by_ngram(whole)
        assert all(whole[pair] == count for pair, count in left.items())
        ngrams = {pair[:-1] for pair in left}
        classes = {ngram: slow.usefulness(followers, ngram) for ngram in followers}
        assert max((classes[n] for n in followers if n not in ngrams), default=0) <= min(
            (classes[n] for n in ngrams), default=1 << 20
        )


def test_pruning_a_large_cache_stays_within_any_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tally = tally_of([np.minimum(rng.zipf(1.4, 30_000), 3000)])
    cache = cache_in_memory({size: ArraySource(tally.ngrams(size)) for size in SIZES})
    path, least = tmp_path / "pruned.ngc", 1024 + 4 * (3 * 64 + 16)
    for budget in (least, least + 11, 5000, 50_000, 400_000, 10**7):
        write_pruned(path, cache, Origin(), budget)
        assert path.stat().st_size <= budget
        assert len(open_cache(path)) <= len(cache)
    assert len(open_cache(path)) == len(cache)
