"""Embedder: the same vectors as llama-cpp-python's own, whatever is computed together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest

from ngramspec.errors import InputError, StateError
from ngramspec.llamacpp.embeddings import POOLINGS, SEQUENCES, Embedder
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings
from ngramspec.models import embedded_model

SETTINGS = ContextSettings(context_size=2048, n_ubatch=256, threads=1, flash_attn=False)
TEXTS = ["I believe the meaning of life is", "x", "def area(width, height):\n    return", "é☃"]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def loaded() -> Iterator[LlamaModel]:
    with LlamaModel(embedded_model()) as llama:
        yield llama


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_llama_cpp_python(loaded: LlamaModel, pooling: str) -> None:
    kind = getattr(llama_cpp, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    peer = llama_cpp.Llama(
        str(embedded_model()), embedding=True, pooling_type=kind, n_ctx=256, n_threads=1,
        n_batch=256, verbose=False, flash_attn=False,
    )  # fmt: skip
    with Embedder(loaded, SETTINGS, pooling) as embedder:
        assert embedder.pooling == pooling
        texts = [loaded.tokenize(text) for text in TEXTS]
        together = embedder.embed(texts)
        for text, ids, vectors in zip(TEXTS, texts, together, strict=True):
            expected = np.atleast_2d(np.array(peer.embed(text, normalize=False), dtype=np.float32))
            assert vectors.shape == (len(ids) if pooling == "none" else 1, embedder.size)
            np.testing.assert_allclose(vectors, expected, atol=CLOSE * np.abs(expected).max())
            (alone,) = embedder.embed([ids])
            np.testing.assert_allclose(vectors, alone, atol=CLOSE * np.abs(expected).max())
    peer.close()


def test_sizes_are_bounded(loaded: LlamaModel) -> None:
    with Embedder(loaded, SETTINGS, "last") as embedder:
        assert (embedder.most_tokens, embedder.most_texts) == (256, SEQUENCES)
        full = np.full(256, 65, np.int32)
        assert embedder.embed([full])[0].shape == (1, embedder.size)
        one = np.array([65], np.int32)
        assert len(embedder.embed([one] * SEQUENCES)) == SEQUENCES
        for texts in ([], [one] * (SEQUENCES + 1), [full, one]):
            with pytest.raises(InputError, match="fit"):
                embedder.embed(texts)


@pytest.mark.parametrize(("size", "most_texts"), [(200, 8), (33, 1)])
def test_any_size_of_a_batch_works(loaded: LlamaModel, size: int, most_texts: int) -> None:
    with Embedder(loaded, replace(SETTINGS, n_ubatch=size), "mean") as embedder:
        assert (embedder.most_tokens, embedder.most_texts) == (size, most_texts)
        assert embedder.embed([np.full(size, 65, np.int32)])[0].shape == (1, embedder.size)


def test_a_text_again_has_the_same_vector(loaded: LlamaModel) -> None:
    with Embedder(loaded, SETTINGS, "mean") as embedder:
        ids = loaded.tokenize("the same text")
        first = embedder.embed([ids])[0]
        embedder.embed([loaded.tokenize("another text")] * 3)
        assert np.array_equal(first, embedder.embed([ids])[0])


def test_the_model_says_how_to_pool_and_a_wrong_way_is_refused(loaded: LlamaModel) -> None:
    with Embedder(loaded, SETTINGS) as embedder:
        assert embedder.pooling == "none"
    with pytest.raises(InputError, match="pooling must be one of none, mean, cls, last"):
        Embedder(loaded, SETTINGS, "rank")


def test_it_is_closed_with_its_model() -> None:
    with LlamaModel(embedded_model()) as model:
        embedder = Embedder(model, SETTINGS, "last")
    with pytest.raises(StateError, match="closed"):
        embedder.embed([np.array([65], np.int32)])
    embedder.close()
    with pytest.raises(StateError):
        Embedder(model, SETTINGS, "last")
