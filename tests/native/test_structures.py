"""The pool and the n-gram cache against their references, without a drafter around them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import Native, NativeCache, Reference, int32
from helpers.machines import texts
from ngramspec import read_lookup_cache, write_lookup_cache
from reference import NgramCache

KEYS = st.lists(st.integers(0, 60), min_size=2, max_size=2)  # 3721 keys for 1024 cells
CHECK_BITS = st.sampled_from([0, 1, 8])
TEXTS = texts(4, 40)


@given(
    inserts=st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=200),
    again=st.integers(0, 60),
    check_bits=CHECK_BITS,
    num_cells=st.sampled_from([1, 2, 20, 512]),
)
def test_pools_agree_cell_by_cell(
    inserts: list[tuple[list[int], int]], again: int, check_bits: int, num_cells: int
) -> None:
    options = {"capacity": 1024, "check_bits": check_bits, "max_occupancy": num_cells / 1024}
    native, reference = Native().pool(**options), Reference().pool(**options)
    for key, token in inserts + inserts[:again]:
        native.insert(key, token)
        reference.insert(key, token)
        assert native.lookup(key) == token
    assert native.num_used == reference.num_used
    assert native.entries() == reference.entries()
    for key, _ in inserts:
        assert native.lookup(key) == reference.lookup(key)
    assert native.core.check() == ""


@given(text=st.lists(st.integers(0, 900), min_size=60, max_size=400), check_bits=CHECK_BITS)
def test_colliding_ngrams_are_told_apart_alike(text: list[int], check_bits: int) -> None:
    options = {"capacity": 1024, "check_bits": check_bits, "max_occupancy": 0.9}
    native, reference = Native().pool(**options), Reference().pool(**options)
    for i in range(2, len(text)):
        native.insert(text[i - 2 : i], text[i])
        reference.insert(text[i - 2 : i], text[i])
    for i in range(2, len(text)):
        key = text[i - 2 : i]
        assert native.lookup(key) == reference.lookup(key)
        assert native.lookup(key[::-1]) == reference.lookup(key[::-1])


def assert_equal_counts(native: NativeCache, reference: NgramCache, text: list[int]) -> None:
    assert len(native) == len(reference)
    for ngram, followers in reference.counts.items():
        assert native.followers(list(ngram)) == followers
    assert native.followers([*text[-2:], 77]) == {}
    assert native.core.check() == ""


@given(updates=st.lists(st.tuples(TEXTS, st.integers(0, 30)), max_size=5), sizes=st.data())
def test_caches_agree_count_by_count(
    updates: list[tuple[list[int], int]], sizes: st.DataObject
) -> None:
    ngram_min = sizes.draw(st.integers(1, 4))
    options = {"ngram_min": ngram_min, "ngram_max": sizes.draw(st.integers(ngram_min, 4))}
    native, reference = Native().cache(**options), Reference().cache(**options)
    for text, start in updates:
        native.update(text, min(start, len(text)))
        reference.update(text, min(start, len(text)))
        assert_equal_counts(native, reference, text)


@given(first=TEXTS, second=TEXTS)
def test_a_merge_adds_the_counts(first: list[int], second: list[int]) -> None:
    native, other, reference = Native().cache(), Native().cache(), Reference().cache()
    native.update(first)
    other.update(second)
    native.core.merge(other.core)
    reference.update(first)
    reference.update(second)
    assert_equal_counts(native, reference, first)


@given(text=TEXTS)
def test_a_lookup_cache_file_holds_every_count(text: list[int]) -> None:
    cache, reference = Native().cache(), Reference().cache()
    cache.update(text)
    reference.update(text)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
        write_lookup_cache(cache.core, path)
        assert_equal_counts(NativeCache(read_lookup_cache(path)), reference, text)


def test_an_unseen_ngram_has_no_followers() -> None:
    cache = Native().cache()
    cache.update([1, 2, 3])
    assert cache.core.followers(int32([3])) == {}
