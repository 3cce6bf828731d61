"""Loading: each way to read a file gives the same model, and metadata is believed."""

from __future__ import annotations

from typing import Any

import pytest

from ngramspec.errors import InputError
from ngramspec.llamacpp.loading import LAZY_MODES, MODES, Loading
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_loads_the_model(mode: str) -> None:
    with LlamaModel(embedded_model(), loading=Loading(mode=mode, check_tensors=True)) as model:
        assert model.detokenize(model.tokenize("import os")) == "import os"


@pytest.mark.parametrize("lazy", LAZY_MODES)
def test_every_lazy_mode_loads_the_model(lazy: str) -> None:
    with LlamaModel(embedded_model(), loading=Loading(lazy=lazy, host_buffers=False)) as model:
        assert model.n_ctx_train == 2048


def test_metadata_is_believed_instead_of_the_files() -> None:
    metadata: dict[str, bool | int | float | str] = {
        "llama.context_length": 1024,
        "tokenizer.ggml.add_bos_token": True,
        "llama.rope.freq_base": 5000.0,
        "general.name": "another",
    }
    with LlamaModel(embedded_model()) as model:
        assert (model.n_ctx_train, model.add_bos) == (2048, False)
    with LlamaModel(embedded_model(), loading=Loading(metadata=metadata)) as model:
        assert (model.n_ctx_train, model.add_bos) == (1024, True)
        shown = {key: model.metadata[key] for key in metadata}
    assert shown == {
        "llama.context_length": "1024", "tokenizer.ggml.add_bos_token": "true",
        "llama.rope.freq_base": "5000.000000", "general.name": "another",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "mode must be one of auto, none, mmap, mlock, mmap+mlock, dio"),
        ({"lazy": "very"}, "lazy must be one of auto, on, off, got 'very'"),
        ({"metadata": {"": 1}}, "keys and texts have 1..127 bytes"),
        ({"metadata": {"k" * 128: 1}}, "keys and texts have 1..127 bytes"),
        ({"metadata": {"k": "ü" * 64}}, "keys and texts have 1..127 bytes"),
        ({"metadata": {"k": 1 << 63}}, "metadata: k must fit in 64 bits"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Loading(**options)
    assert message in str(caught.value)
