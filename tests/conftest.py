"""All tests: those that take longest go first, so that no core waits for them at the end."""

from __future__ import annotations

import pytest

LONG = (
    "packaging/test_distribution.py",
    "cluster/test_ray_build.py",
    "engine/test_distribution.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; the order is otherwise kept."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))
