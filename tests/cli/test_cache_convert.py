"""ngramspec cache convert and prune: to llama.cpp's format and back, to fewer n-grams."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cache_files import MODEL, counts_of, held_by
from helpers.cli import assert_one_error
from ngramspec import read_lookup_cache
from ngramspec.files.cache_file import about_of, open_cache
from ngramspec.files.container import open_container
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import fingerprint_of

pytestmark = pytest.mark.usefixtures("cache_files")


def test_convert_there_and_back(cache: Any) -> None:
    read = read_lookup_cache("a.bin")
    assert len(read) == len(open_cache("a.ngc"))
    counts = counts_of("a.ngc", 2)
    for ngram in list(counts)[::50]:
        assert read.followers(np.array(ngram, np.int32)) == counts[ngram]
    report = cache("convert", "a.bin", "back.ngc", *MODEL)
    assert report["header"]["fingerprint"] == str(fingerprint_of(embedded_model()))
    assert Path("back.ngc").read_bytes()[1024:] == Path("bare.ngc").read_bytes()[1024:]
    assert (
        cache("convert", "a.bin", "unknown", "--to", "ngramspec")["header"]["fingerprint"] is None
    )
    assert cache("convert", "back.ngc", "again", "--to", "llama.cpp")["header"] is None
    assert Path("again").read_bytes() == Path("a.bin").read_bytes()
    assert cache("inspect", "again")["kind"] == "llama.cpp lookup cache"  # whatever its name


def test_a_text_is_not_replaced_by_a_lookup_cache(invoke: Any) -> None:
    text = Path("notes.txt")
    text.write_text("letters are words that look like large numbers\n")
    result = invoke("cache", "convert", "a.ngc", "notes.txt", "--to", "llama.cpp")
    assert_one_error(result, "notes.txt is no statistics file or lookup cache", 2)
    assert text.read_text().startswith("letters")


def test_prune_by_count_and_size(cache: Any, invoke: Any) -> None:
    cache("prune", "a.ngc", "-o", "p.ngc", "--min-count", "2", "--ngram-max", "3")
    for size in (2, 3):
        often = {
            ngram: Counter({t: count for t, count in followers.items() if count >= 2})
            for ngram, followers in counts_of("a.ngc", size).items()
        }
        assert held_by("p.ngc", size) == {n: f for n, f in often.items() if f}
    assert open_cache("p.ngc").num_ngrams(4) == 0
    about = about_of(open_container("p.ngc"))
    assert about["corpus"] == ["copy.py", "csv.py", "glob.py"]
    assert about["pruned"][0]["min_count"] == 2
    report = cache("prune", "a.ngc", "-o", "a.ngc", "--max-size", "80K")  # in place
    assert 40 << 10 < report["file_bytes"] <= 80 << 10
    assert cache("verify", "a.ngc")[0]["error"] is None
    result = invoke("cache", "prune", "b.ngc", "-o", "p.ngc", "--max-size", "1G")
    assert " of " in result.stdout
    assert len(open_cache("p.ngc")) == len(open_cache("b.ngc"))
    cache("prune", "bare.ngc", "-o", "p.ngc", "--ngram-min", "4")
    assert open_cache("p.ngc").ngram_min == 4
    assert about_of(open_container("p.ngc")) == {}
