"""Exact settings, each found once: it takes seconds, and the outcome is the same."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ngramspec.engine.exactness import NUM_ROWS, Exactness, trees_differ
from ngramspec.files.atomic import new_file
from ngramspec.llamacpp import exact
from ngramspec.llamacpp.exact import candidates, find_exact
from ngramspec.llamacpp.model import LlamaModel, file_digest
from ngramspec.llamacpp.settings import ContextSettings

MEASURED: dict[tuple[Any, ...], Any] = {}
FOLDER = os.environ.get("EXACT_SETTINGS")  # where processes of one run of the tests leave them


def once(key: tuple[Any, ...], measure: Callable[[], Any]) -> Any:
    """Return what was measured in this run, by this process or by another one, or measure it."""
    if key not in MEASURED:
        name = f"{hashlib.sha256(repr(key).encode()).hexdigest()}.measured"
        path = Path(FOLDER, name) if FOLDER else None
        if path is not None and path.exists():
            MEASURED[key] = pickle.loads(path.read_bytes())
        else:
            MEASURED[key] = measure()
            if path is not None:
                with new_file(path) as file:
                    file.write(pickle.dumps(MEASURED[key]))
    return MEASURED[key]


def find_once(
    model: LlamaModel,
    threads: int,
    slots: int,
    cache_type: str = "f16",
    own: ContextSettings | None = None,
    before_pass: Callable[[], None] = lambda: None,
) -> Exactness:
    """Return what find_exact finds; what is tried depends on slots and threads.

    A model with adapters is measured each time.
    """
    if model.adapters:
        return find_exact(model, threads, slots, cache_type, own, before_pass)
    own = own or ContextSettings()
    bounded = replace(
        own, slots=1, context_size=0, cells=0, branches=1, kv_unified=True, pad=False,
        threads=None, threads_batch=None, flash_attn=True, type_k=cache_type, type_v=cache_type,
        n_batch=min(exact.LARGEST, own.n_batch), n_ubatch=min(exact.LARGEST, own.n_ubatch),
    )  # fmt: skip
    key = (
        file_digest(model.path),  # tests copy models
        bounded,
        *candidates(threads, slots, cache_type),
    )
    return once(key, lambda: find_exact(model, threads, slots, cache_type, own, before_pass))


def differ_once(
    target: Any,
    token_ids: Any,
    sizes: Sequence[int],
    num_rows: int = NUM_ROWS,
    before_pass: Callable[[], None] = lambda: None,
) -> bool:
    """Return what trees_differ does."""
    if target.num_adapters:
        return trees_differ(target, token_ids, sizes, num_rows, before_pass)
    key = file_digest(target.model.path), target.settings, token_ids.tobytes(), *sizes, num_rows
    return once(key, lambda: trees_differ(target, token_ids, sizes, num_rows, before_pass))
