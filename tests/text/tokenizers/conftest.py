"""Fixtures: the embedded model's vocabulary as GGUF and as tokenizer.json, and small GGUF files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    from ngramspec import embedded_model

    return embedded_model()


@pytest.fixture(scope="session")
def json_path(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vocabularies import export_tokenizer_json

    path = tmp_path_factory.mktemp("hugging_face") / "tokenizer.json"
    export_tokenizer_json(gguf_path, path)
    return path
