"""Exact settings, each found once: it takes seconds, and drafts have no part in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ngramspec.engine.exactness import Exactness, trees_differ
from ngramspec.llamacpp.exact import find_exact
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.settings import ContextSettings

_FOUND: dict[tuple[Any, ...], Exactness] = {}
_DIFFER: dict[tuple[Any, ...], bool] = {}


def find_once(
    model: LlamaModel,
    threads: int,
    slots: int,
    cache_type: str = "f16",
    own: ContextSettings | None = None,
    before_pass: Callable[[], None] = lambda: None,
) -> Exactness:
    """Return what find_exact finds, which chooses the kind of cache, and measures no branches."""
    own = own and replace(own, branches=1, kv_unified=True)
    key = model.path, threads, slots, cache_type, own
    if key not in _FOUND:
        _FOUND[key] = find_exact(model, threads, slots, cache_type, own, before_pass)
    return _FOUND[key]


def differ_once(
    target: Any,
    token_ids: Any,
    sizes: Sequence[int],
    rows: int,
    before_pass: Callable[[], None] = lambda: None,
) -> bool:
    """Return what trees_differ does."""
    key = target.model.path, target.settings, token_ids.tobytes(), *sizes, rows
    if key not in _DIFFER:
        _DIFFER[key] = trees_differ(target, token_ids, sizes, rows, before_pass)
    return _DIFFER[key]
