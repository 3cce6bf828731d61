"""Fixtures: tiny models built once per session; Llama objects closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")

from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model

# Settings in which llama.cpp's CPU kernels give the same logits for every batch size, on Q8_0
# weights: the only ones in which equal text may be demanded.
BIT_EXACT = {"n_threads": 1, "n_threads_batch": 1, "flash_attn": True, "verbose": False}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="session")
def model_path(model_folder: Path) -> Callable[[str], str]:
    """Return the path of a model by name; "embedded" is the one that ships with the package."""
    from helpers.gguf_models import build

    def path(name: str) -> str:
        return str(embedded_model()) if name == "embedded" else build(name, model_folder)

    return path


@pytest.fixture(scope="session")
def model(model_path: Callable[[str], str]) -> Iterator[LlamaModel]:
    """Return the tiny llama."""
    with LlamaModel(model_path("llama")) as llama:
        yield llama


@pytest.fixture
def open_target(model_path: Callable[[str], str]) -> Iterator[Callable[..., LlamaTarget]]:
    """Return a function that opens a model and makes a target; both are closed afterwards."""
    models: list[LlamaModel] = []

    def open_target(name: str = "llama", **settings: Any) -> LlamaTarget:
        models.append(LlamaModel(model_path(name)))
        exact = {"context_size": 256, "threads": 1, "flash_attn": True}
        return LlamaTarget(models[-1], **{**exact, **settings})

    yield open_target
    for model in models:
        model.close()


@pytest.fixture
def make_llama(model_path: Callable[[str], str]) -> Iterator[Callable[..., Any]]:
    """Return a function that loads a model, bit-exact unless told otherwise."""
    from llama_cpp import Llama

    llamas: list[Any] = []

    def make(name: str = "llama", kind: Any = Llama, **settings: Any) -> Any:
        llama = kind(model_path(name), **{"n_ctx": 512, "n_batch": 512, **BIT_EXACT, **settings})
        llamas.append(llama)
        return llama

    yield make
    for llama in llamas:
        llama.close()
