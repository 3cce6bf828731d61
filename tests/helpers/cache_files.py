"""The statistics files that the tests of `ngramspec cache` work on, and what they hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from helpers.cli import CORPORA, Counts, invoke, slow_counts
from ngramspec._native.files.entries import EntryReader, tokens_of
from ngramspec.files.cache_file import open_cache
from ngramspec.files.entries import read_all
from ngramspec.models import embedded_model

MODEL = ("--model", str(embedded_model()))
FILES = {
    "a.ngc": ("python/copy.py", "python/csv.py", "python/glob.py"),
    "b.ngc": ("python/csv.py", "text/tutorial/classes.rst"),
    "a.pool": ("python/copy.py", "python/csv.py"),
    "b.pool": ("python/csv.py", "text/tutorial/classes.rst"),
}
POOL = ("--kind", "hash-pool", "--n-match", "4", "--capacity", "16K")


def make_files(folder: Path) -> None:
    """Make those of FILES and some that differ from them."""
    for name, corpus in FILES.items():
        build_file(folder / name, corpus, *(POOL if name.endswith(".pool") else ()))
    build_file(folder / "bare.ngc", FILES["a.ngc"], "--no-provenance")
    build_file(folder / "other.ngc", FILES["a.ngc"], "--tokenizer", str(_other_tokenizer(folder)))
    names = (str(folder / name) for name in ("a.ngc", "a.bin"))
    run = invoke("cache", "convert", *names)
    assert run.exit_code == 0, run.output


def build_file(path: Path, corpus: tuple[str, ...], *options: str) -> None:
    paths = [str(CORPORA / name) for name in corpus]
    result = invoke("build-cache", *paths, "-o", path, *options)
    assert result.exit_code == 0, result.output


def _other_tokenizer(folder: Path) -> Path:
    vocab = {text: i for i, text in enumerate(["?", *"abcdefghijklmnopqrstuvwxyz"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": split}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder / "tokenizer.json"


def counts_of(name: str, size: int) -> Counts:
    """Count slowly what followed each n-gram in the corpus of a file."""
    return slow_counts(((CORPORA / path).read_text("utf-8") for path in FILES[name]), size)


def added(*parts: Counts) -> Counts:
    total: Counts = {}
    for part in parts:
        for ngram, followers in part.items():
            total[ngram] = total.get(ngram, Counter()) + followers
    return total


def held_by(name: str, size: int) -> Counts:
    """Return all n-grams of a size that a file holds, looked up one by one."""
    cache = open_cache(name)
    ngrams = tokens_of(read_all(EntryReader(cache, size)), size)[:, :size]
    return {
        tuple(ngram.tolist()): Counter(cache.followers(ngram))
        for ngram in np.unique(ngrams, axis=0)
    }


def flip(name: str, offset: int) -> None:
    data = bytearray(Path(name).read_bytes())
    data[offset] ^= 1
    Path(name).write_bytes(data)
