"""Exact targets: the settings of llama.cpp in which drafts cannot change a bit, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.settings import ContextSettings
from ngramspec.adapters.llama_cpp.target import LlamaTarget
from ngramspec.engine.exactness import WAYS, Exactness, Setting, measure, trees_differ
from ngramspec.errors import BackendError, InputError

QUICK_SIZES = (2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 48, 50, 62, 63)
ENOUGH_TOKENS = 560  # beyond 512 cells, where llama.cpp divides the cache among threads
QUICK_ROWS = 32
LEAST = 2  # a batch of one token leaves no room for a draft


def open_setting(
    model: LlamaModel, setting: Setting, slots: int, context_size: int, **options: Any
) -> LlamaTarget:
    """Return a target run in a setting.

    Raises:
        BackendError: llama.cpp cannot run it.
    """
    return LlamaTarget(
        model,
        slots=slots,
        context_size=context_size,
        n_batch=64,
        n_ubatch=64,
        threads=setting.threads,
        threads_batch=setting.threads,
        flash_attn=setting.flash_attn,
        type_k=setting.cache_type,
        type_v=setting.cache_type,
        pad=setting.padded,
        **{"kv_unified": setting.unified, **options},
    )


def random_tokens(model: LlamaModel, count: int) -> npt.NDArray[np.int32]:
    """Return `count` random tokens of the model's vocabulary, the same on every call."""
    rng = np.random.default_rng(20)
    return rng.integers(0, model.vocab_size, size=count).astype(np.int32)


def candidates(
    threads: int, slots: int, cache_type: str = "f16", adapters: bool = False
) -> list[Setting]:
    """Return the settings that may be exact, fastest first.

    With one cache for several slots, freed cells are reused by any sequence; a sequence's cells are
    then not in the order of its positions, and its sums round differently. So several slots get a
    cache each, and one thread: several would divide the cache of a single token among them.

    The matrices of LoRA adapters are multiplied with a lone token in another way than with several.
    That shows in one token of twenty or so, more seldom than is measured, so it is always padded.
    Only one slot can be.
    """
    found = []
    if slots == 1 and (threads > 1 or adapters):
        found.append(Setting(threads, True, cache_type, True, padded=True))
    if not adapters:
        found.append(Setting(1, True, cache_type, False))
    return found


def find_exact(
    model: LlamaModel,
    threads: int,
    slots: int,
    cache_type: str = "f16",
    on_step: Callable[[], None] = lambda: None,
) -> Exactness:
    """Return the first candidate in which drafts can be verified exactly.

    A model with adapters is measured with all of them applied.

    Raises:
        BackendError: There is none for this model on this machine, or for adapters and several
            slots.

    Cost: about 1,500 decoded tokens per candidate.
    """
    if model.adapters and slots > 1:
        raise BackendError(
            "with LoRA adapters only one slot is exact: set one slot, or leave them out"
        )
    ids = random_tokens(model, ENOUGH_TOKENS)
    tried = []
    for setting in candidates(threads, slots, cache_type, bool(model.adapters)):
        found = measure(
            lambda s, n: _adapted(open_setting(model, s, n, ENOUGH_TOKENS)),
            setting,
            ids,
            QUICK_SIZES,
            num_rows=QUICK_ROWS,
            ways=WAYS[2:],
            stop_early=True,
            on_step=on_step,
        )
        if found.limit() >= LEAST:
            return found
        tried.append(setting.text())
    raise BackendError(
        f"no setting is exact for this model: with {'; or with '.join(tried)}, batches of 2 tokens "
        "have other bits than single tokens (see `ngramspec bench exactness`)"
    )


def open_tested(model: LlamaModel, settings: ContextSettings) -> tuple[LlamaTarget, Exactness]:
    """Return a target in the first exact setting with its slots, context, threads and cache type.

    Raises:
        InputError: Cached keys and values have different types.
        BackendError: As find_exact.

    Cost: that of find_exact.
    """
    kind = settings.type_k
    if settings.type_v != kind:
        raise InputError(
            "an exact setting needs the same type for cached keys and values, got "
            f"{kind} and {settings.type_v}"
        )
    found = find_exact(model, settings.num_threads[0], settings.slots, kind)
    size, branches = settings.context_size_of(model), settings.branches
    return open_exact(model, found, settings.slots, size, branches), found


def open_exact(
    model: LlamaModel, found: Exactness, slots: int, context_size: int, branches: int = 1
) -> LlamaTarget:
    """Return the target in the setting that find_exact found, with its exact_batch set.

    branches: Most of a draft. Only one slot has more than one, if rows are equal beside others: it
        has the cache for itself, so that its text lies in order.
    """
    made: dict[str, Any] = {}
    if slots == 1 and branches > 1:
        made = {"kv_unified": True, "branches": branches}
    target = open_setting(model, found.setting, slots, context_size, **made)
    target.exact_batch = found.limit()
    if target.max_branches > 1:
        count = min(ENOUGH_TOKENS, context_size * 3 // 4)  # wrong branches need room, too
        rows, ids = min(QUICK_ROWS, count // 2), random_tokens(model, count)
        sizes = [size for size in (3, 9, 33, 63) if size <= target.exact_batch]
        if trees_differ(_adapted(target), ids, sizes, rows):
            target.close()
            return open_exact(model, found, slots, context_size)
        target.adapt(())
    return target


def _adapted(target: LlamaTarget) -> LlamaTarget:
    """Apply all adapters: their matrices have kernels of their own, which may round differently."""
    target.adapt(tuple((number, 1.0) for number in range(target.num_adapters)))
    return target
