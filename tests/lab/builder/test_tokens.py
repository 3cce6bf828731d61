"""Statistics files from token ids: the same as from the texts that they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngramspec.errors import InputError
from ngramspec.files.cache_file import about_of, open_cache
from ngramspec.files.container import open_container
from ngramspec.files.pool_file import PoolShape
from ngramspec.files.suffix_file import open_suffix_index
from ngramspec.lab.builder.options import BuildOptions
from ngramspec.lab.builder.tokens import build_from_tokens
from ngramspec.text.tokenizers import Fingerprint

KNOWN = Fingerprint(b"sixteen bytes...", 100)
HELD_OUT = BuildOptions(held_out=0.9)


def texts(count: int = 20, seed: int = 0) -> list[Any]:
    chance = np.random.default_rng(seed)
    return [chance.integers(0, 5, 60, dtype=np.int32) for _ in range(count)]


def test_counts_are_those_of_the_texts_each_once(tmp_path: Path) -> None:
    documents, path = texts(), tmp_path / "a.ngc"
    build = build_from_tokens([*documents, *documents[:5]], path, KNOWN, about={"corpus": ["x"]})
    assert (build.totals.documents, build.totals.duplicates, build.totals.tokens) == (20, 5, 1200)
    counts: Counter[tuple[int, ...]] = Counter()
    for text in documents:
        ids = text.tolist()
        counts.update(tuple(ids[i : i + 3]) for i in range(len(ids) - 2))
    cache = open_cache(path, fingerprint=KNOWN.digest, verify=True)
    for (*ngram, follower), count in counts.items():
        assert cache.followers(np.array(ngram, np.int32))[follower] == count
    about = about_of(open_container(path))
    assert about["corpus"] == ["x"]
    assert (about["documents"], about["tokens"]) == (20, 1200)
    assert about["options"]["ngram_max"] == 4


@pytest.mark.parametrize("kind", ["ngram-cache", "hash-pool"])
def test_rare_pairs_are_dropped(tmp_path: Path, kind: str) -> None:
    documents, shape = texts(5), PoolShape(3, 1 << 20, 8, 0.9)
    headers = []
    for least in (1, 2):
        options = BuildOptions(kind=kind, ngram_min=3, ngram_max=3, pool=shape, min_count=least)
        headers.append(build_from_tokens(documents, tmp_path / "a", KNOWN, options).header)
    counts: Counter[tuple[int, ...]] = Counter()
    for text in documents:
        ids = text.tolist()
        counts.update(tuple(ids[i : i + 4]) for i in range(len(ids) - 3))
    often = {pair for pair, count in counts.items() if count >= 2}
    assert 0 < len(often) < len(counts)
    if kind == "ngram-cache":
        assert [header.num_pairs for header in headers] == [len(counts), len(often)]
    else:  # a cell for each n-gram
        expected = [len({pair[:3] for pair in pairs}) for pairs in (counts, often)]
        assert [header.num_ngrams for header in headers] == expected


def test_an_index_holds_the_texts(tmp_path: Path) -> None:
    documents, path = texts(), tmp_path / "a.ngx"
    build = build_from_tokens(documents, path, KNOWN, BuildOptions(kind="suffix"))
    assert build.header.num_pairs == 1200
    assert open_suffix_index(path, fingerprint=KNOWN.digest, verify=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not about_of(open_container(path))


@pytest.mark.parametrize("kind", ["ngram-cache", "hash-pool", "suffix"])
def test_some_can_be_held_out_to_measure(tmp_path: Path, kind: str) -> None:
    text = texts(1)[0]
    documents = [np.concatenate([np.array([number], np.int32), text]) for number in range(60)]
    options = BuildOptions(kind=kind, held_out=0.3)
    build = build_from_tokens(documents, tmp_path / "a", None, options)
    assert build.held_out is not None
    assert build.held_out.documents == build.totals.held_out > 5
    assert build.totals.tokens == (60 - build.totals.held_out) * 61
    assert build.held_out.with_file.right >= build.held_out.without_file.right


@pytest.mark.parametrize("kind", ["ngram-cache", "hash-pool", "suffix"])
def test_token_ids_of_another_tokenizer_are_refused(tmp_path: Path, kind: str) -> None:
    document = np.array([1, 2, 100], np.int32)
    with pytest.raises(InputError, match="token id 100 is not below 100, the tokenizer's size"):
        build_from_tokens([document], tmp_path / "a", KNOWN, BuildOptions(kind=kind))


def test_nothing_to_count(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no text to count"):
        build_from_tokens([], tmp_path / "a", KNOWN)
    with pytest.raises(InputError, match="no text to count, as all of it is held out"):
        build_from_tokens([np.arange(2, dtype=np.int32)], tmp_path / "a", KNOWN, HELD_OUT)
