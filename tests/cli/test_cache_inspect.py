"""ngramspec cache inspect: what it tells against slow counts, with and without a tokenizer."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cache_files import MODEL, counts_of
from helpers.cli import succeed
from ngramspec.files.cache_file import Origin, write_cache
from ngramspec.files.container import open_container
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import fingerprint_of, load_tokenizer

pytestmark = pytest.mark.usefixtures("cache_files")


def test_inspect_agrees_with_slow_counts(cache: Any) -> None:
    facts = cache("inspect", "a.ngc", "--top", "5")
    tokenizer = load_tokenizer(embedded_model())
    assert (facts["kind"], facts["version"]) == ("ngram-cache", 1)
    assert facts["producer"].startswith("ngramspec ")
    assert facts["fingerprint"] == str(fingerprint_of(embedded_model()))
    assert facts["tokenizer"] == "the embedded model's"
    assert facts["file_bytes"] == Path("a.ngc").stat().st_size
    assert facts["about"]["corpus"] == ["copy.py", "csv.py", "glob.py"]
    assert [size["size"] for size in facts["sizes"]] == [2, 3, 4]
    for size in facts["sizes"]:
        counts = counts_of("a.ngc", size["size"])
        totals = {ngram: sum(followers.values()) for ngram, followers in counts.items()}
        assert size["num_ngrams"] == len(counts)
        assert size["num_pairs"] == sum(map(len, counts.values()))
        assert size["occurrences"] == sum(totals.values())
        assert [one["count"] for one in size["top"]] == sorted(totals.values())[:-6:-1]
        for one in size["top"]:
            ngram, follower = tuple(one["token_ids"]), one["follower"]
            assert one["count"] == totals[ngram]
            assert one["text"] == tokenizer.decode(ngram)
            assert one["num_followers"] == len(counts[ngram])
            assert follower["count"] == counts[ngram][follower["token_id"]]
            assert follower["count"] == max(counts[ngram].values())
            assert follower["text"] == tokenizer.decode([follower["token_id"]])
    assert facts["num_ngrams"] == sum(size["num_ngrams"] for size in facts["sizes"])
    assert facts["bytes_per_ngram"] == facts["file_bytes"] / facts["num_ngrams"]


def test_inspect_in_words(invoke: Any) -> None:
    result = succeed("cache", "inspect", "a.ngc", "--top", "2")
    text = result.stdout
    assert "tokenizer  " + str(fingerprint_of(embedded_model())) + " (the embedded model's)" in text
    assert "made from  copy.py, csv.py, glob.py; 3 documents, " in text
    assert "Most frequent 4-grams" in text
    short = invoke("cache", "inspect", "a.ngc", "--top", "0").stdout
    assert "Most frequent" not in short
    assert "pairs" not in short
    other = invoke("cache", "inspect", "other.ngc", "--top", "1").stdout
    assert "(not the embedded model's)" in other
    named = invoke("cache", "inspect", "other.ngc", "--tokenizer", "tokenizer.json").stdout
    assert "(that of tokenizer.json)" in named
    assert "'? ?'" in named


def test_inspect_without_a_known_tokenizer_shows_ids(invoke: Any, cache: Any) -> None:
    facts = cache("inspect", "a.bin", "--top", "1")
    assert facts["kind"] == "llama.cpp lookup cache"
    assert facts["tokenizer"] is facts["fingerprint"] is facts["vocab_size"] is None
    assert "text" not in facts["sizes"][0]["top"][0]
    ids = " ".join(map(str, facts["sizes"][0]["top"][0]["token_ids"]))
    assert f" {ids} " in invoke("cache", "inspect", "a.bin", "--top", "1").stdout
    shown = cache("inspect", "a.bin", "--top", "1", *MODEL)
    assert shown["sizes"][0]["top"][0]["text"]
    del shown["sizes"][0]["bytes"]
    expected = cache("inspect", "a.ngc", "--top", "1")["sizes"][0]
    del expected["bytes"]
    assert shown["sizes"][0] == expected


def test_inspect_pool(cache: Any, invoke: Any) -> None:
    pool = cache("inspect", "a.pool")["pool"]
    cells = np.frombuffer(open_container("a.pool").view("cells"), "<u4")
    used = int(np.count_nonzero(cells))
    assert pool["num_used"] == pool["counters"]["num_used"] == used > 1000
    assert sum(pool["by_confidence"]) == used
    assert pool["occupancy"] == used / (1 << 14)
    assert {name: pool[name] for name in ("n_match", "capacity", "check_bits")} == {
        "n_match": 4, "capacity": 1 << 14, "check_bits": 8,
    }  # fmt: skip
    text = invoke("cache", "inspect", "a.pool").stdout
    assert f"in use     {used:,} cells" in text
    assert "shape      4 tokens per lookup, 16,384 cells, 8 check bits" in text


def test_ids_are_shown_without_llama_cpp(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    monkeypatch.setattr("ngramspec.text.tokenizers.llama_library._LOADED", [])
    facts = cache("inspect", "a.ngc", "--top", "1")
    assert facts["tokenizer"] == "the embedded model's"
    assert "text" not in facts["sizes"][0]["top"][0]


def test_made_from_names_only_what_was_read(build: Any, invoke: Any, tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    for name in ("b.py", "c.py"):
        (folder / name).write_text(f"print('{name}')\n" * 20)
    for name in ("a.pyc", "d.pyc"):
        (folder / name).write_bytes(bytes(40))
    report = build(str(folder))
    assert report["problems"]["num_skipped"] == 2
    assert set(report["problems"]) == {
        "num_files",
        "num_skipped",
        "num_recoded",
        "num_records",
        "first",
    }
    facts = json.loads(invoke("cache", "inspect", "out.ngc", "--json").stdout)
    assert facts["about"]["corpus"] == ["b.py", "c.py"]
    assert facts["about"]["more_files"] == 0


def test_what_a_file_says_commands_no_terminal(invoke: Any) -> None:
    about = {"corpus": ["\x1b]0;title\x07a\n\x9b2J.py"], "tokenizer": "\x1b[2J"}
    write_cache("evil.ngc", {}, Origin(about=about))
    stdout = invoke("cache", "inspect", "evil.ngc").stdout
    assert r"made from  \x1b]0;title\x07a\x0a\x9b2J.py; 0 documents" in stdout
    assert not re.search(r"[^\n -~]", stdout)
    assert json.loads(invoke("cache", "inspect", "evil.ngc", "--json").stdout)["about"] == about


def test_a_file_of_an_impossible_date_is_inspected(
    invoke: Any, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngramspec.files.describe.date_of", lambda seconds: None)
    assert cache("inspect", "a.ngc")["modified"] is None
    assert ", of an unknown date\n" in invoke("cache", "inspect", "a.ngc").stdout


def test_ids_beyond_the_vocabulary_are_numbers() -> None:
    from ngramspec.cli.cache.inspect import text_of

    tokenizer = load_tokenizer(embedded_model())
    word = tokenizer.encode("self").tolist()
    assert text_of(tokenizer, [*word, 5000, *word]) == "self<5000>self"
