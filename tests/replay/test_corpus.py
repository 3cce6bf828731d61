"""Statistics from a corpus bring drafts on text that was not in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.paths import CORPORA
from ngramspec import (
    NgramCache,
    create_drafter,
    embedded_model,
    read_lookup_cache,
    write_lookup_cache,
)

CORPUS = CORPORA / "python"
HELD_OUT = "fnmatch.py"


@pytest.fixture(scope="module")
def tokens() -> dict[str, np.ndarray]:
    """The corpus file by file, in the embedded model's tokens."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="the tokenizer comes from llama-cpp-python")
    llama = llama_cpp.Llama(str(embedded_model()), vocab_only=True, verbose=False)
    files = sorted(CORPUS.glob("*.py"))
    return {f.name: np.array(llama.tokenize(f.read_bytes(), False), np.int32) for f in files}


def test_a_static_cache_accepts_more_on_held_out_code(
    tokens: dict[str, np.ndarray], tmp_path: Path
) -> None:
    corpus = NgramCache(2, 2)
    for name, text in tokens.items():
        if name != HELD_OUT:
            corpus.update(text)
    path = tmp_path / "python.bin"
    write_lookup_cache(corpus, path)
    assert read_lookup_cache(path).records().tolist() == corpus.records().tolist()

    text = tokens[HELD_OUT]
    cold = create_drafter("ngram-cache").replay(text[:20], text[20:])
    warm = create_drafter("ngram-cache", static=path).replay(text[:20], text[20:])
    assert warm.mean_accepted_length > 1.02 * cold.mean_accepted_length
