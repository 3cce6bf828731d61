"""Statistics files that are refused: of a wrong shape, tokenizer or use; every documented error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.files import OTHERS, OURS, SHAPE, entry_at, leftovers, patched, refused, section_table
from helpers.statistics_files import entries_of
from ngramspec import (
    DynamicFile,
    StaticCache,
    create_drafter,
    embedded_model,
    open_cache,
    open_pool,
)
from ngramspec.errors import CapacityError, FormatError, InputError, VocabMismatchError
from ngramspec.files.cache_file import Origin, check_cache, write_cache
from ngramspec.files.container import open_container
from ngramspec.files.entries import ArraySource
from ngramspec.files.pool_file import PoolShape, check_pool, create_pool, write_pool
from ngramspec.files.prune import useful_sources, write_pruned
from ngramspec.text.tokenizers import Fingerprint

POOL_DAMAGES: dict[str, tuple[str, int, str, Any, str]] = {
    "cells": ("shape", 0, "<I", 11, "expected 2048 cells of 4 bytes in section 'cells'"),
    "few cells": ("shape", 0, "<I", 9, "capacity must be a power of two in 1024..2**31, got 512"),
    "huge": ("shape", 0, "<I", 2**32 - 1, "capacity must be a power of two in 1024..2**31"),
    "check bits": ("shape", 4, "<I", 9, "check_bits must be in 0..8, got 9"),
    "share": ("shape", 8, "<d", 0.96, "max_occupancy must be above 0 and at most 0.95, got 0.96"),
    "no number": ("shape", 8, "<d", float("nan"), "max_occupancy must be above 0"),
    "negative": ("shape", 8, "<d", -1.0, "max_occupancy must be above 0"),
}


@pytest.mark.parametrize("name", POOL_DAMAGES)
def test_a_pool_of_an_impossible_shape_is_refused(pool_path: Path, name: str) -> None:
    section, offset, code, value, message = POOL_DAMAGES[name]
    start = section_table(pool_path.read_bytes())[section][0]
    patched(pool_path, (start + offset, code, value))
    refused(
        pool_path, lambda: open_pool(pool_path), f"section 'shape' at offset {start}: {message}"
    )


def test_a_pool_with_counters_of_another_size_is_refused(pool_path: Path) -> None:
    entry = entry_at(pool_path, "counters")
    offset = section_table(pool_path.read_bytes())["counters"][0]
    patched(pool_path, (entry + 16, "<Q", 13))
    message = f"section 'counters' at offset {offset}: expected 40 bytes, found 13"
    for call in (open_pool, lambda path: check_pool(open_container(path))):
        refused(pool_path, lambda call=call: call(pool_path), message)


def test_a_pool_without_its_sections_is_refused(pool_path: Path) -> None:
    whole = pool_path.read_bytes()
    for name in ("shape", "counters", "cells"):
        patched(pool_path, (entry_at(pool_path, name), "<8s", b"other"))
        message = f"expected a section '{name}', found ["
        refused(pool_path, lambda: open_pool(pool_path), message)
        pool_path.write_bytes(whole)
    for vocab_size in (0, 1 << 22):
        patched(pool_path, (48, "<I", vocab_size))
        message = "vocab_size must be in 1..4194303"
        refused(pool_path, lambda: open_pool(pool_path), message)
    for n_match in (0,):
        patched(pool_path, (52, "<H", n_match), (48, "<I", 9))
        refused(pool_path, lambda: open_pool(pool_path), "n_match must be in 1..65535, got 0")


def test_cells_without_a_token_are_found_and_treated_as_empty(pool_path: Path) -> None:
    at = section_table(pool_path.read_bytes())["cells"][0] + 4 * 700
    cells = np.frombuffer(pool_path.read_bytes()[at - 2800 :][:4096], "<u4")
    assert cells[700] == 0
    for value in (12, 1 << 30, 0xFFFFFFFF, 0x3FFFFF):
        patched(pool_path, (at, "<I", value))
        message = f"cell at offset {at}: expected a token id"
        refused(pool_path, lambda: check_pool(open_container(pool_path)), message)
        pool = open_pool(pool_path)
        assert (pool.num_used, pool.check()) == (9, "")
        assert pool_path.read_bytes()[at : at + 4] == bytes(4)
    check_pool(open_container(pool_path))
    at += 4 * (pool.index_of(int32([1, 2, 3, 4])) - 700)
    cell = int.from_bytes(pool_path.read_bytes()[at : at + 4], "little")
    assert (cell & 0x3FFFFF, pool.lookup(int32([1, 2, 3, 4]))) == (5, 4)
    with open(pool_path, "r+b") as file:  # while the pool is in use
        file.seek(at)
        file.write((cell + 10).to_bytes(4, "little"))
    assert pool.lookup(int32([1, 2, 3, 4])) == -1


def test_pools_of_another_kind_n_match_or_shape_are_refused(
    cache_path: Path, pool_path: Path, tmp_path: Path
) -> None:
    refused(cache_path, lambda: open_pool(cache_path), "kind hash-pool, found ngram-")
    message = "was made for n_match=4, got n_match=24: no lookup would find anything"
    refused(pool_path, lambda: open_pool(pool_path, n_match=24), message, InputError)
    refused(pool_path, lambda: create_drafter("ngram-mod", pool=pool_path), message, InputError)
    refused(pool_path, lambda: DynamicFile(pool_path), "of kind ngram-cache, found")
    refused(pool_path, lambda: create_pool(pool_path, SHAPE, Origin()), "", FileExistsError)
    for shape, message in (
        (PoolShape(0), "n_match must be in 1..65535, got 0"),
        (PoolShape(4, 1000), "capacity must be a power of two in 1024..2**31, got 1000"),
        (PoolShape(4, 1024, 9), "check_bits must be in 0..8, got 9"),
        (PoolShape(4, 1024, 8, 0.0), "max_occupancy must be above 0"),
        (PoolShape(4, 1024, 8, float("inf")), "max_occupancy must be above 0"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            create_pool(tmp_path / "new.ngp", shape, Origin())
        with pytest.raises(InputError, match=re.escape(message)):
            write_pool(tmp_path / "new.ngp", np.zeros(1024, np.uint32), shape, Origin())
    assert leftovers(tmp_path, cache_path.name, pool_path.name) == []


def test_files_of_another_tokenizer_are_refused_unless_any_will_do(
    cache_path: Path, pool_path: Path
) -> None:
    message = f"its fingerprint is {OURS.hex()}, the target's is {OTHERS.hex()}"
    ours, others = Fingerprint(OURS, 10), Fingerprint(OTHERS, 10)
    static, dynamic, mod = (
        {"static": cache_path},
        {"dynamic": cache_path},
        {"pool": pool_path, "n_match": 4},
    )
    calls: list[tuple[Path, Callable[..., Any]]] = [
        (cache_path, lambda t, **o: open_cache(cache_path, fingerprint=t and t.digest, **o)),
        (pool_path, lambda t, **o: open_pool(pool_path, fingerprint=t and t.digest, **o)),
        (cache_path, lambda t, **o: create_drafter("ngram-cache", tokenizer=t, **static, **o)),
        (cache_path, lambda t, **o: create_drafter("ngram-cache", tokenizer=t, **dynamic, **o)),
        (pool_path, lambda t, **o: create_drafter("ngram-mod", tokenizer=t, **mod, **o)),
        (cache_path, lambda t, any_tokenizer=False: DynamicFile(
            cache_path, origin=Origin(t.digest) if t else None, any_tokenizer=any_tokenizer)),
    ]  # fmt: skip
    for path, call in calls:
        for tokenizer in (None, ours):
            call(tokenizer)
        refused(path, lambda call=call: call(others), message, VocabMismatchError)
        call(others, any_tokenizer=True)
        unknown = path.read_bytes()
        patched(path, (32, "<16s", bytes(16)))
        call(others)
        path.write_bytes(unknown)


def test_a_drafter_takes_the_tokenizer_of_a_model_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.ngp"
    create_drafter("ngram-mod", pool=path, capacity=1024, tokenizer=embedded_model())
    header = open_container(path).header
    assert header.fingerprint is not None
    assert header.vocab_size > 1000
    create_drafter("ngram-mod", pool=path, tokenizer=embedded_model())
    with pytest.raises(VocabMismatchError):
        create_drafter("ngram-mod", pool=path, tokenizer=Fingerprint(OTHERS, 10))
    with pytest.raises(OSError, match="No such file"):
        create_drafter("ngram-mod", pool=path, tokenizer=tmp_path / "none.gguf")


def test_caches_and_pools_of_a_wrong_type_are_named() -> None:
    for name, parameter, message in (
        ("ngram-cache", "static", "static must be a StaticCache, an NgramCache or a path, got int"),
        (
            "ngram-cache",
            "dynamic",
            "dynamic must be an NgramCache, a DynamicFile or a path, got int",
        ),
        ("ngram-mod", "pool", "pool must be a HashPool or a path, got int"),
    ):
        with pytest.raises(InputError, match=message):
            create_drafter(name, **{parameter: 3})
    with pytest.raises(InputError, match="save_interval must be >= 0 seconds, got -1"):
        create_drafter("ngram-cache", save_interval=-1)


def test_too_many_ngrams_too_large_tokens_and_too_small_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "learned.ngc"
    file = DynamicFile(path)
    file.cache.update(int32(range(20)))
    file.save()
    before = path.read_bytes()
    held = len(file.cache)
    message = f"holds {held} n-grams, max_ngrams is 16"
    refused(path, lambda: DynamicFile(path, max_ngrams=16), message, CapacityError)
    refused(
        path, lambda: create_drafter("ngram-cache", dynamic=path, max_ngrams=16), message,
        CapacityError,
    )  # fmt: skip
    with pytest.raises(InputError, match="token id 19 is not below vocab_size, 19"):
        write_cache(path, {1: ArraySource(file.cache.entries(1))}, Origin(None, 19))
    first = ArraySource(entries_of(Counter({(19, 1): 1}), 1))  # not as a follower
    with pytest.raises(InputError, match="token id 19 is not below vocab_size, 19"):
        write_cache(path, {1: first}, Origin(None, 19))
    file.cache.update(int32([1, 1 << 21]))
    with pytest.raises(InputError, match="token ids up to 2097151; a larger one was counted"):
        file.save()
    with pytest.raises(InputError, match="token ids up to 2097151"):
        create_drafter("ngram-cache", static=file.cache)
    for words in ([1, -1, -1, -1, 1, 1 << 21, 1], [1 << 21, 5, -1, -1, 1, 1, 1]):
        (tmp_path / "large.bin").write_bytes(np.array(words, "<i4").tobytes())
        for role in ("static", "dynamic"):
            with pytest.raises(FormatError, match=r"large\.bin: .*token ids up to 2097151"):
                create_drafter("ngram-cache", **{role: tmp_path / "large.bin"})
    (tmp_path / "large.bin").unlink()
    cache = open_cache(path)
    with pytest.raises(InputError, match="a statistics file needs 1856 bytes at least, max_size"):
        write_pruned(path, cache, Origin(), 1855)
    with pytest.raises(InputError, match="bounds must not be negative"):
        useful_sources(cache, max_ngrams=-1)
    assert path.read_bytes() == before
    assert leftovers(tmp_path, path.name, f"{path.name}.lock") == []


def test_a_token_that_no_text_follows_with_is_still_looked_up(tmp_path: Path) -> None:
    """Such as the one that begins every text and has a large id."""
    path = tmp_path / "learned.ngc"
    file = DynamicFile(path)
    file.cache.update(int32([128_000, 1, 2]))
    file.save()
    cache = open_cache(path)
    assert cache.vocab_size == 128_001
    assert cache.followers([128_000, 1]) == {2: 1}
    check_cache(cache)
    assert len(DynamicFile(path).cache) == len(file.cache)
    static = create_drafter("ngram-cache", static=file.cache, static_min_sample=1)
    static.begin(0, [128_000, 1])
    assert static.propose(0, 1).tolist() == [2]


def test_sections_given_by_hand_are_checked() -> None:
    def words(*values: int) -> np.ndarray:
        return np.array(values, np.uint32)

    good = (words(), words(), words(0, 0))
    assert len(StaticCache({2: good}, 1)) == 0
    for sections, vocab_size, message in (
        ({5: good}, 1, "n-gram sizes must be in 1..4, got 5"),
        ({2: good}, 0, "vocab_size must be in 1..2097152, got 0"),
        ({2: good}, 2**21 + 1, "vocab_size must be in 1..2097152"),
        ({2: (good[0].astype(np.int32), *good[1:])}, 1, "must be uint32 arrays of shape (n,)"),
        ({2: (words(1), *good[1:])}, 1, "1 words are not a whole number of records of 2-grams"),
        ({2: (*good[:2], words(0, 0, 0, 0))}, 1, "an index must have 2**k + 1 words, got 4"),
        ({2: (*good[:2], words())}, 1, "an index must have 2**k + 1 words, got 0"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            StaticCache(sections, vocab_size)
    cache = StaticCache({2: good}, 1)
    for tokens in ([], [1] * 5):
        with pytest.raises(InputError, match="token_ids must hold 1"):
            cache.followers(tokens)
