"""Exact settings, each found once: it takes seconds, and drafts have no part in it."""

from __future__ import annotations

from pathlib import Path

from ngramspec.adapters.llama_cpp.exact import find_exact
from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.engine.exactness import Exactness

_FOUND: dict[tuple[Path, int], Exactness] = {}


def exact_setting(model: LlamaModel, slots: int) -> Exactness:
    """Return what find_exact finds for one thread and so many slots."""
    key = Path(model.path), slots
    if key not in _FOUND:
        _FOUND[key] = find_exact(model, threads=1, slots=slots)
    return _FOUND[key]
