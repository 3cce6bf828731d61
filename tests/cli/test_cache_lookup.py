"""ngramspec cache lookup: the draft and the followers, from text, stdin and a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.cache_files import MODEL, counts_of
from helpers.cli import CORPORA, assert_one_error
from ngramspec import create_drafter
from ngramspec.files.pool_file import open_pool
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers import load_tokenizer

pytestmark = pytest.mark.usefixtures("cache_files")


def test_lookup_shows_the_draft_and_the_followers(cache: Any, invoke: Any) -> None:
    tokenizer = load_tokenizer(embedded_model())
    text = "\n    def __init__(self"
    made = cache("lookup", "a.ngc", text)
    tokens = tokenizer.encode(text)
    assert made["token_ids"] == tokens.tolist()
    drafter = create_drafter("ngram-cache", static="a.ngc", n_draft=8)
    drafter.begin(0, tokens[:-1])
    drafter.accept(0, tokens[-1:], 0)
    assert made["draft"]["token_ids"] == drafter.propose(0, 8).tolist() != []
    assert made["draft"]["text"] == tokenizer.decode(made["draft"]["token_ids"])
    assert [size["size"] for size in made["sizes"]] == [4, 3, 2]
    for size in made["sizes"]:
        followers = counts_of("a.ngc", size["size"])[tuple(size["token_ids"])]
        assert size["count"] == sum(followers.values())
        assert size["num_followers"] == len(followers)
        first = sorted(followers.items(), key=lambda pair: (-pair[1], pair[0]))[:5]
        assert [(f["token_id"], f["count"]) for f in size["followers"]] == first
        assert all(f["share"] == f["count"] / size["count"] for f in size["followers"])
    shown = invoke("cache", "lookup", "a.ngc", text).stdout
    num = len(made["draft"]["token_ids"])
    assert f"{num} token{'s' if num > 1 else ''} would be drafted after" in shown
    assert f"  {made['draft']['text']!r}\n" in shown
    assert len(cache("lookup", "a.ngc", text, "-n", "1")["draft"]["token_ids"]) == 1


def test_lookup_reads_stdin(cache: Any, invoke: Any) -> None:
    assert cache("lookup", "a.ngc", "-", stdin="import") == cache("lookup", "a.ngc", "import")
    unknown = invoke("cache", "lookup", "a.ngc", "zq")
    assert unknown.exit_code == 0
    assert "Nothing would be drafted after" in unknown.stdout
    assert "not in the file" in unknown.stdout


def test_lookup_in_a_lookup_cache_of_llama_cpp(cache: Any) -> None:
    ours = cache("lookup", "a.ngc", "def __init__(self")
    theirs = cache("lookup", "a.bin", "def __init__(self", *MODEL)
    assert theirs["sizes"] == ours["sizes"]
    assert theirs["draft"] == ours["draft"]


def test_lookup_in_a_pool_leaves_it_alone(cache: Any, invoke: Any) -> None:
    before = Path("a.pool").read_bytes()
    text = (CORPORA / "python/copy.py").read_text("utf-8")
    tokenizer = load_tokenizer(embedded_model())
    pool, tokens = open_pool("a.pool"), tokenizer.encode(text)[:40].tolist()
    expected = tokens[:]
    while len(expected) < 46 and (token := pool.lookup(np.array(expected[-4:], np.int32))) >= 0:
        expected.append(token)
    made = cache("lookup", "a.pool", tokenizer.decode(tokens), "-n", "6")
    assert made["draft"]["token_ids"] == expected[40:] != []
    assert Path("a.pool").read_bytes() == before
    result = invoke("cache", "lookup", "a.pool", "if")
    assert_one_error(result, "the text has 1 token, lookups in a.pool take 4", 2)


def test_ids_beyond_the_vocabulary_are_numbers() -> None:
    from ngramspec.cli.cache.vocabulary import text_of

    tokenizer = load_tokenizer(embedded_model())
    word = tokenizer.encode("self").tolist()
    assert text_of(tokenizer, [*word, 5000, *word]) == "self<5000>self"
