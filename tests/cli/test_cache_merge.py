"""ngramspec cache merge: counts that add up, bounds, tokenizers, pools."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cache_files import FILES, added, build_file, counts_of, held_by
from helpers.cli import assert_one_error
from ngramspec.files.cache_file import about_of, open_cache
from ngramspec.files.container import open_container
from ngramspec.files.pool_file import open_pool
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import fingerprint_of

pytestmark = pytest.mark.usefixtures("cache_files")


@pytest.mark.parametrize("order", [("a.ngc", "b.ngc"), ("b.ngc", "a.ngc")])
def test_merged_counts_add_up(cache: Any, order: tuple[str, ...]) -> None:
    report = cache("merge", *order, "-o", "m.ngc")
    for size in (2, 3, 4):
        counts = added(*(counts_of(name, size) for name in order))
        assert open_cache("m.ngc", verify=True).num_ngrams(size) == len(counts)
        for ngram in list(counts)[::100]:
            assert open_cache("m.ngc").followers(np.array(ngram, np.int32)) == counts[ngram]
    assert report["header"]["num_ngrams"] == len(open_cache("m.ngc"))
    assert report["header"]["fingerprint"] == str(fingerprint_of(embedded_model()))
    parts = about_of(open_container("m.ngc"))["merged"]
    assert sorted(part["corpus"][-1] for part in parts) == ["csv.py", "glob.py"]
    cache("merge", *order[::-1], "-o", "again.ngc")
    assert Path("again.ngc").read_bytes() == Path("m.ngc").read_bytes()


def test_merging_in_steps_gives_the_bytes_of_one_merge(cache: Any) -> None:
    cache("merge", "a.ngc", "b.ngc", "bare.ngc", "-o", "once.ngc")
    cache("merge", "bare.ngc", "b.ngc", "-o", "step.ngc")
    cache("merge", "step.ngc", "a.ngc", "-o", "step.ngc")  # in place
    assert Path("step.ngc").read_bytes() == Path("once.ngc").read_bytes()


def test_merge_with_a_lookup_cache_of_llama_cpp(cache: Any) -> None:
    cache("merge", "b.ngc", "a.bin", "-o", "with_bin.ngc")
    cache("merge", "b.ngc", "a.ngc", "-o", "with_ngc.ngc")
    for size in (2, 3, 4):
        assert held_by("with_bin.ngc", size) == held_by("with_ngc.ngc", size)
    headers = [open_container(f"with_{name}.ngc").header for name in ("bin", "ngc")]
    assert headers[0].fingerprint == headers[1].fingerprint is not None
    cache("merge", "a.bin", "a.bin", "-o", "unknown.ngc")
    header = open_container("unknown.ngc").header
    assert header.fingerprint is None
    assert about_of(open_container("unknown.ngc")) == {}


def test_merge_with_bounds(cache: Any) -> None:
    cache("merge", "a.ngc", "b.ngc", "-o", "often.ngc", "--min-count", "3")
    sums = added(counts_of("a.ngc", 3), counts_of("b.ngc", 3))
    often = {n: Counter({t: c for t, c in f.items() if c >= 3}) for n, f in sums.items()}
    assert held_by("often.ngc", 3) == {n: f for n, f in often.items() if f}
    about = about_of(open_container("often.ngc"))
    assert about["pruned"] == [{"min_count": 3, "max_bytes": None}]
    report = cache("merge", "a.ngc", "b.ngc", "-o", "small.ngc", "--max-size", "100K")
    assert 50 << 10 < report["file_bytes"] <= 100 << 10
    assert not list(Path().glob("*.whole"))


def test_merging_again_and_again_with_bounds_keeps_the_provenance_flat(cache: Any) -> None:
    cache("merge", "a.ngc", "b.ngc", "-o", "often.ngc", "--min-count", "2")
    for least in ("2", "3", "3"):
        cache("merge", "often.ngc", "b.ngc", "-o", "often.ngc", "--min-count", least)
    about = about_of(open_container("often.ngc"))
    names = Counter(part["corpus"][-1] for part in about["merged"])
    assert sorted(names.values()) == [1, 4]  # of a.ngc once, of b.ngc four times
    bounds = [{"min_count": least, "max_bytes": None} for least in (2, 3)]
    assert about["pruned"] == bounds


def test_the_order_of_files_that_were_merged_with_bounds_does_not_matter(cache: Any) -> None:
    names = ("two.ngc", "three.ngc")
    for name, least in zip(names, "23", strict=True):
        cache("merge", "a.ngc", "b.ngc", "-o", name, "--min-count", least)
    for bounds in ((), ("--min-count", "4")):
        cache("merge", *names, "-o", "m.ngc", *bounds)
        cache("merge", *names[::-1], "-o", "again.ngc", *bounds)
        assert Path("again.ngc").read_bytes() == Path("m.ngc").read_bytes()


def test_merge_of_different_tokenizers(invoke: Any, cache: Any) -> None:
    result = invoke("cache", "merge", "a.ngc", "other.ngc", "-o", "m.ngc")
    message = "other.ngc was made with another tokenizer than a.ngc: counts of different tokens"
    assert_one_error(result, message, 1)
    cache("merge", "a.ngc", "other.ngc", "-o", "m.ngc", "--any-tokenizer")
    header = open_container("m.ngc").header
    assert header.fingerprint is None
    assert header.vocab_size == 4096
    cache("merge", "a.bin", "other.ngc", "-o", "m.ngc", "--any-tokenizer")
    assert open_container("m.ngc").header.vocab_size > 27
    result = invoke("cache", "merge", "a.bin", "other.ngc", "-o", "m.ngc")
    assert result.exit_code == 2
    assert "is not below vocab_size, 27" in result.stderr


def test_merged_pools_keep_the_more_confirmed_cell(cache: Any) -> None:
    report = cache("merge", "a.pool", "b.pool", "-o", "m.pool")
    a, b, m = (np.frombuffer(open_container(n).view("cells"), "<u4").tolist()
               for n in ("a.pool", "b.pool", "m.pool"))  # fmt: skip
    chosen = [
        max(filter(None, pair), key=lambda cell: (cell >> 30, -cell), default=0)
        for pair in zip(a, b, strict=True)
    ]
    assert len(set(a) & set(b)) > 1
    most = (1 << 14) // 2
    surplus = sum(map(bool, chosen)) - most
    assert surplus > 0  # so the least confirmed of the last cells give way
    rare = [i for i, cell in enumerate(chosen) if cell and cell >> 30 == 0]
    for i in rare[-surplus:]:
        chosen[i] = 0
    assert m == chosen
    assert report["header"]["num_ngrams"] == most
    assert open_pool("m.pool").num_used == most
    cache("merge", "b.pool", "a.pool", "-o", "again.pool")
    assert Path("again.pool").read_bytes() == Path("m.pool").read_bytes()


def test_pools_that_cannot_be_merged(invoke: Any) -> None:
    build_file(Path("five.pool"), FILES["a.pool"], "--kind", "hash-pool", "--n-match", "5",
           "--capacity", "16K")  # fmt: skip
    for names, message in (
        (("a.pool", "five.pool"), "five.pool has n_match 5, a.pool has 4: only pools of one shape"),
        (("a.pool", "a.ngc"), "a.pool is a hash-pool, a.ngc is a ngram-cache"),
        (("a.pool", "b.pool", "--min-count", "2"), "--min-count and --max-size are not for hash"),
    ):
        assert_one_error(invoke("cache", "merge", *names, "-o", "m.pool"), message, 2)
