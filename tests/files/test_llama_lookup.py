"""Errors of lookup caches of llama.cpp and of their paths, and what they leave behind."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ngramspec import NgramCache, create_drafter, read_lookup_cache, write_lookup_cache
from ngramspec.errors import CapacityError, FormatError

GOOD = [5, 6, -1, -1, 1, 7, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*GOOD, 5, 6], "cut off in its n-gram, in the record at offset 28"),
        ([*GOOD, 5, 6, -1, -1, 2, 7, 3], "cut off in its followers, in the record at offset 28"),
        ([*GOOD, -1, -1, -1, -1, 1, 7, 3], "the n-gram is empty"),
        ([*GOOD, 5, -2, -1, -1, 1, 7, 3], "n-gram is negative"),
        ([*GOOD, 5, -1, 6, -1, 1, 7, 3], "n-gram is negative"),
        ([*GOOD, 5, 6, -1, -1, 0], "number of followers is not positive"),
        ([*GOOD, 5, 6, -1, -1, 2**31 - 1, 7, 3], "cut off in its followers"),
        ([*GOOD, 5, 6, -1, -1, 1, -7, 3], "follower's token id is negative"),
        ([*GOOD, 5, 6, -1, -1, 1, 7, 0], "count is not positive"),
    ],
)
def test_a_damaged_lookup_cache_is_refused_with_its_offset(
    tmp_path: Path, words: list[int], message: str
) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(np.array(words, dtype="<i4").tobytes())
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        read_lookup_cache(path)
    assert str(path) in str(caught.value)


def test_every_truncation_of_a_lookup_cache_is_refused_but_at_record_ends(tmp_path: Path) -> None:
    cache = NgramCache()
    cache.update([1, 2, 3, 1, 2, 4])
    path = tmp_path / "cache.bin"
    write_lookup_cache(cache, path)
    whole = path.read_bytes()
    ends = {0}
    while max(ends) < len(whole):
        start = max(ends)
        followers = int.from_bytes(whole[start + 16 : start + 20], "little")
        ends.add(start + 20 + 8 * followers)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length in ends:
            assert len(read_lookup_cache(path)) == sorted(ends).index(length)
        else:
            with pytest.raises(FormatError):
                read_lookup_cache(path)


def test_a_directory_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="found a directory"):
        read_lookup_cache(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_lookup_cache(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        create_drafter("ngram-cache", static=tmp_path / "none")
    assert create_drafter("ngram-cache", dynamic=tmp_path / "none").sources == ("ngram-cache",)


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    with pytest.raises(OSError, match="target"):
        write_lookup_cache(NgramCache(), folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_lookup_cache_with_too_many_followers_is_refused_not_thinned(tmp_path: Path) -> None:
    cache = NgramCache(1, 1)
    for token in range(1000):
        cache.update([5, 10 + token])
    path = tmp_path / "learned.bin"
    write_lookup_cache(cache, path)
    assert len(read_lookup_cache(path).followers([5])) == 1000
    with pytest.raises(CapacityError, match="max_ngrams 300 is not room for all of its"):
        read_lookup_cache(path, max_ngrams=300)
    assert len(read_lookup_cache(path, max_ngrams=5000).followers([5])) == 1000


def test_a_lookup_cache_larger_than_its_bound_is_refused_not_thinned(tmp_path: Path) -> None:
    cache = NgramCache()
    cache.update(list(range(60)))
    path = tmp_path / "learned.bin"
    write_lookup_cache(cache, path)
    assert len(read_lookup_cache(path, max_ngrams=len(cache))) == len(cache)
    for load in (
        lambda: read_lookup_cache(path, max_ngrams=100),
        lambda: create_drafter("ngram-cache", dynamic=path, max_ngrams=100),
    ):
        with pytest.raises(CapacityError, match=f"holds {len(cache)} n-grams, max_ngrams is 100"):
            load()
