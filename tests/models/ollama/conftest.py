"""Puts the helpers of this folder where tests can import them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def store(tmp_path: Path):
    from helpers.ollama_stores import Store

    return Store(tmp_path / "models")
