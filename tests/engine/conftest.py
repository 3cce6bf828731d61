"""Fixtures: the tiny models of tests/llama, built once per session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the path of a model by name; "embedded" is the one that ships with the package."""
    from llama.gguf_models import build
    from ngramspec.models import embedded_model

    folder: Path = tmp_path_factory.mktemp("gguf")

    def path(name: str) -> str:
        return str(embedded_model()) if name == "embedded" else build(name, folder)

    return path
