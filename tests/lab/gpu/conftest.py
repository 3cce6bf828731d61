"""Fixtures: the scripts of benchmarks/gpu can be imported, a small model in packed passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.gpu_scripts import GPU, needs


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GPU))


@pytest.fixture
def packed(scripts: None) -> Any:
    """Return the module of packed passes."""
    needs("torch", "transformers")
    import packed_passes

    return packed_passes


@pytest.fixture(scope="session")
def small_model() -> Callable[[], Any]:
    """Return a function that makes the small model, once; it needs `packed`."""
    models: list[Any] = []

    def model() -> Any:
        import torch

        from packed_llama import SHAPES, random_model

        if not models:
            models.append(random_model(SHAPES["small"], torch.device("cpu"), torch.float32))
        return models[0]

    return model


@pytest.fixture
def make_passes(packed: Any, small_model: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that makes passes of the small model over a cache of noise."""

    def make(rows: int = 2, length: int = 64, most: int = 6, **options: Any) -> Any:
        import torch

        from packed_llama import SHAPES, Cache

        cache = Cache(SHAPES["small"], rows, length, torch.device("cpu"), torch.float32)
        cache.fill_with_noise()
        return packed.Passes(small_model(), cache, most, graphs=False, **options)

    return make
