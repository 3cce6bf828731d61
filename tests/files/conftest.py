"""Fixtures: statistics files to damage or to open in a wrong way."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.files import sample_cache, sample_pool


@pytest.fixture
def cache_path(tmp_path: Path) -> Path:
    return sample_cache(tmp_path)


@pytest.fixture
def pool_path(tmp_path: Path) -> Path:
    return sample_pool(tmp_path)
