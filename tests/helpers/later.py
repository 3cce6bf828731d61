"""Packages that take seconds to import: each worker collects all tests, and runs a part of them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Later:
    """A package that is imported when a test first uses it; the module is skipped without it."""

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        if importlib.util.find_spec(name) is None:
            pytest.skip(reason, allow_module_level=True)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks of its own
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
