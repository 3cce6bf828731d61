"""ngramspec cache diff: equal statistics, and differences counted slowly."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from helpers.cache_files import FILES, build_file, counts_of
from ngramspec.cli import main
from ngramspec.files.cache_file import open_cache
from ngramspec.files.container import open_container
from ngramspec.files.pool_file import PoolShape

pytestmark = pytest.mark.usefixtures("cache_files")


def test_equal_statistics(cache: Any, invoke: Any) -> None:
    made = cache("diff", "a.ngc", "a.bin")
    assert made["equal"] is True
    assert list(made["header"]) == ["kind", "fingerprint"]
    assert [size["equal"] for size in made["sizes"]] == [
        open_cache("a.ngc").num_ngrams(size) for size in (2, 3, 4)
    ]
    assert cache("diff", "a.ngc", "bare.ngc")["header"].keys() == {"about"}
    assert cache("diff", "a.pool", "a.pool")["equal"] is True
    text = invoke("cache", "diff", "a.ngc", "bare.ngc").stdout
    assert text.startswith("a.ngc (A) and bare.ngc (B) are equal\n  about: not the same\n")


def test_differences_are_counted(cache: Any, invoke: Any) -> None:
    made = cache("diff", "a.ngc", "b.ngc", "--top", "4", code=1)
    assert made["equal"] is False
    for size in made["sizes"]:
        a, b = (counts_of(name, size["size"]) for name in ("a.ngc", "b.ngc"))
        both = a.keys() & b.keys()
        differing = {ngram for ngram in both if a[ngram] != b[ngram]}
        assert size["only_a"] == len(a.keys() - b.keys())
        assert size["only_b"] == len(b.keys() - a.keys())
        assert size["differing"] == len(differing)
        assert size["equal"] == len(both - differing)
        none: Counter[int] = Counter()
        apart = {
            ngram: sum(
                abs(a.get(ngram, none)[token] - b.get(ngram, none)[token])
                for token in a.get(ngram, none).keys() | b.get(ngram, none).keys()
            )
            for ngram in a.keys() | b.keys()
        }
        assert [one["difference"] for one in size["largest"]] == sorted(apart.values())[:-5:-1]
        for one in size["largest"]:
            ngram = tuple(one["token_ids"])
            assert one["difference"] == apart[ngram]
            sums = [sum(counts.get(ngram, none).values()) for counts in (a, b)]
            assert one["counts"] == sums
    text = invoke("cache", "diff", "a.ngc", "b.ngc").stdout
    assert "Largest differences of 2-grams" in text
    assert "Largest" not in invoke("cache", "diff", "a.ngc", "b.ngc", "--top", "0").stdout


def test_another_tokenizer_is_a_difference(cache: Any) -> None:
    Path("text").write_text("aaaa")
    for name in ("one", "two"):
        vocab = json.loads(Path("tokenizer.json").read_text())
        vocab["model"]["vocab"][name] = 27
        Path(f"{name}.json").write_text(json.dumps(vocab))
        paths = ("text", "-o", f"{name}.ngc", "--tokenizer", f"{name}.json", "--no-provenance")
        assert CliRunner().invoke(main, ["build-cache", *paths]).exit_code == 0
    made = cache("diff", "one.ngc", "two.ngc", code=1)
    assert list(made["header"]) == ["fingerprint"]
    assert all(size["only_a"] == size["differing"] == 0 for size in made["sizes"])


def test_pools_that_differ(cache: Any) -> None:
    made = cache("diff", "a.pool", "b.pool", code=1)["cells"]
    a, b = (np.frombuffer(open_container(n).view("cells"), "<u4") for n in ("a.pool", "b.pool"))
    assert made["only_a"] == np.count_nonzero((a != 0) & (b == 0)) > 0
    assert made["only_b"] == np.count_nonzero((a == 0) & (b != 0)) > 0
    assert made["differing"] == np.count_nonzero((a != 0) & (b != 0) & (a != b))
    assert made["equal"] == np.count_nonzero((a != 0) & (a == b)) > 0
    build_file(Path("small.pool"), FILES["a.pool"], "--kind", "hash-pool", "--capacity", "1K")
    made = cache("diff", "a.pool", "small.pool", code=1)["cells"]
    assert made["shape"] == {"capacity": [1 << 14, 1024], "n_match": [4, PoolShape().n_match]}
