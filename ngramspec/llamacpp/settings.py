"""ContextSettings: how a target's context is made, checked, and as llama.cpp's parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.engine.policy import OFF, USUAL_BRANCHES
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.contexts import CACHE_TYPES
from ngramspec.llamacpp.rope import Rope, apply_rope
from ngramspec.llamacpp.threads import ThreadPlan
from ngramspec.text.tokenizers.llama_library import Library

MAX_SEQUENCES = 256
MAX_BRANCHES = 31
PAGE = 256  # llama.cpp rounds contexts up to a multiple of it
SNAPSHOTS = DEFAULT_MAX_DRAFT  # of small states; a draft of this length can be taken back
SMALL_STATE = 1 << 20  # bytes of a state that is small
FEW_SNAPSHOTS = 16  # of large states: each one makes every decode slower
SNAPSHOT_BYTES = 256 << 20  # that all snapshots together may take, or a quarter of the weights


class Runnable(Protocol):
    """What the settings of a context depend on: a model, with its weights or without."""

    path: Path
    library: Library
    size_bytes: int  # of the weights
    n_ctx_train: int
    has_encoder: bool
    is_diffusion: bool
    n_swa: int  # of its sliding window, 0 = none

    @property
    def is_stateful(self) -> bool:
        """Return whether tokens cannot be removed from its cache one by one."""

    @property
    def state_bytes(self) -> int:
        """Return the bytes of the state that it keeps for each sequence."""

    def check_open(self) -> None:
        """Raise StateError if contexts cannot be made."""


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """Settings of a LlamaTarget."""

    slots: int = 1  # sequences
    context_size: int = 0  # tokens per sequence, 0 = as the model was trained
    n_batch: int = 2048  # tokens in one decode
    n_ubatch: int = 512  # tokens computed at once
    max_outputs: int = 0  # rows of logits in one decode, 0 = n_batch; sizes a buffer of logits
    threads: int | None = None  # None = one per physical core
    threads_batch: int | None = None  # for more than one token, None = as threads
    flash_attn: bool | Literal["auto"] = "auto"
    type_k: str = "f16"  # of CACHE_TYPES
    type_v: str = "f16"  # quantised ones need flash attention
    kv_unified: bool = False  # one cache for all; each sequence then looks at the others' cells
    # Tokens that a unified cache holds; 0 = every sequence can be full, or one of them if
    # context_size is 0
    cells: int = 0
    swa_full: bool = True  # keep what lies outside of a sliding window, for reuse
    n_rs_seq: int | Literal["auto"] = "auto"  # snapshots of recurrent states, per sequence
    offload_kqv: bool = True  # cache and attention on the GPU, if layers are
    op_offload: bool = True  # large operations on the GPU, if there is one
    rope: Rope = field(default_factory=Rope)
    # how threads run, for single tokens and for batches; None = llama.cpp's way
    thread_plans: tuple[ThreadPlan, ThreadPlan] | None = None
    pad: bool = False  # decode single tokens with a copy: same rounding as in a batch
    branches: int = 1  # most of a slot's draft; more than 1 need kv_unified

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InputError: A value is out of its bounds.
        """
        most = MAX_SEQUENCES - self.pad
        _check(1 <= self.slots <= most, f"slots must be in 1..{most}, got {self.slots}")
        most = min(most // self.slots, MAX_BRANCHES)
        _check(
            1 <= self.branches <= most,
            f"branches must be in 1..{most} with {self.slots} slots, got {self.branches}",
        )
        _check(
            self.kv_unified or self.branches == 1,
            "branches need kv_unified: they share the cells of their slot's text",
        )
        _check(
            self.kv_unified or not self.pad, "pad needs kv_unified: the copy must be in one pass"
        )
        least = self.slots * self.branches + self.pad  # llama.cpp keeps a row for each
        for name in ("n_batch", "n_ubatch", "max_outputs", "context_size", "cells"):
            value = getattr(self, name)
            _check(0 <= value < 1 << 31, f"{name} must be in 0..2147483647, got {value}")
        _check(self.n_batch >= least, f"n_batch must be >= {least}, got {self.n_batch}")
        _check(self.n_ubatch >= 1, f"n_ubatch must be >= 1, got {self.n_ubatch}")
        outputs = self.max_outputs
        _check(
            not outputs or least <= outputs <= self.n_batch,
            f"max_outputs must be 0 or in {least}..{self.n_batch}, got {outputs}",
        )
        for name in ("threads", "threads_batch"):
            value = getattr(self, name)
            _check(value is None or 1 <= value <= 512, f"{name} must be in 1..512, got {value}")
        _check(
            self.flash_attn in (True, False, "auto"),
            f'flash_attn must be True, False or "auto", got {self.flash_attn!r}',
        )
        for name in ("type_k", "type_v"):
            value = getattr(self, name)
            choices = ", ".join(CACHE_TYPES)
            _check(value in CACHE_TYPES, f"{name} must be one of {choices}, got {value!r}")
        snapshots = self.n_rs_seq
        _check(
            snapshots == "auto" or 0 <= snapshots <= 1024,
            f'n_rs_seq must be "auto" or in 0..1024, got {snapshots!r}',
        )

    def context_size_of(self, model: Runnable) -> int:
        """Return the tokens that each sequence may hold."""
        return self.context_size or model.n_ctx_train

    @property
    def num_threads(self) -> tuple[int, int]:
        """Return the threads for single tokens and for batches."""
        threads = self.threads or physical_cores()
        return threads, self.threads_batch or threads


class Layout(NamedTuple):
    """How slots share the context, as fields of ContextSettings."""

    kv_unified: bool
    context_size: int
    cells: int


def lay_out(
    slots: int,
    total: int = 0,
    each: int = 0,
    *,
    shared: bool | None = None,
    drafts: bool = True,
    exact: bool = False,
) -> Layout:
    """Return how slots share the context: the one place that decides it.

    Drafts need a cache for all: with one for each, llama.cpp computes drafts of different lengths
    one after the other. An exact setting needs one for each.

    Args:
        slots: How many there are.
        total: Tokens that all hold together, 0 = one trained context.
        each: Most tokens of a slot, 0 = what there is.
        shared: Whether they share a cache; None = as it is best.
        drafts: Whether anything drafts.
        exact: Whether rounding must not change.
    """
    if shared is None:
        shared = not exact and (drafts or not each)
    if not shared:
        return Layout(False, each or total // slots, 0)
    return Layout(True, each or total, total or slots * each)


def context_params(model: Runnable, settings: ContextSettings) -> Any:
    """Return llama_context_params.

    Raises:
        InputError: The sizes do not fit.
        BackendError: The model cannot generate text.
        StateError: The model is closed, or only its vocabulary is loaded.
    """
    model.check_open()
    if model.has_encoder or model.is_diffusion:
        raise BackendError(f"{model.path}: the model does not generate text token by token")
    lib = model.library.lib
    params = lib.llama_context_default_params()
    sequences = settings.slots * branches_of(model, settings) + settings.pad
    params.n_ctx = context_tokens(settings.context_size_of(model), settings)
    params.n_batch = min(settings.n_batch, params.n_ctx)
    params.n_ubatch = min(settings.n_ubatch, params.n_batch)
    params.n_seq_max = sequences
    params.n_outputs_max = min(settings.max_outputs, params.n_batch)
    params.n_rs_seq = snapshots(model, settings, sequences, params.n_ubatch)
    params.n_threads, params.n_threads_batch = settings.num_threads
    if settings.flash_attn == "auto":
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
    elif settings.flash_attn:
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    else:
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = getattr(lib, f"GGML_TYPE_{settings.type_k.upper()}")
    params.type_v = getattr(lib, f"GGML_TYPE_{settings.type_v.upper()}")
    params.kv_unified = settings.kv_unified
    params.swa_full = settings.swa_full
    params.offload_kqv = settings.offload_kqv
    params.op_offload = settings.op_offload
    params.no_perf = True
    apply_rope(settings.rope, lib, params)
    return params


def with_branches(settings: ContextSettings, tree: int | str) -> ContextSettings:
    """Return settings in which drafts may have as many branches as `tree` of an Engine says.

    A single slot shares its cache with nobody, so its cache may as well be unified.

    Raises:
        InputError: So many branches do not fit, or each slot has a cache of its own.
    """
    if tree == OFF:
        return replace(settings, branches=1)
    unified = settings.kv_unified or settings.slots == 1
    if isinstance(tree, int):
        return replace(settings, kv_unified=unified, branches=tree)
    if not unified:
        return settings
    room = min(MAX_SEQUENCES, settings.n_batch, settings.max_outputs or MAX_SEQUENCES)
    most = max(1, (room - settings.pad) // settings.slots)
    return replace(settings, kv_unified=True, branches=min(USUAL_BRANCHES, most))


def branches_of(model: Runnable, settings: ContextSettings) -> int:
    """Return how many branches a slot's draft may have with this model."""
    return settings.branches if can_branch(model) else 1


def can_branch(model: Runnable) -> bool:
    """Return whether a token of the model's cache can belong to several branches of a text."""
    return not (model.is_stateful or model.n_swa)


def context_tokens(each: int, settings: ContextSettings) -> int:
    """Return the cells of the cache.

    Raises:
        InputError: There are too many or too few, or cells of a cache that is not unified.
    """
    if settings.kv_unified:
        cells = settings.cells or (settings.slots if settings.context_size else 1) * each
        _check(cells >= each, f"a cache of {cells} cells cannot hold a sequence of {each}")
        total = round_up(cells + settings.pad)
    else:
        _check(not settings.cells, "cells needs kv_unified: it is the size of a unified cache")
        total = (settings.slots + settings.pad) * round_up(each)
    _check(total < 1 << 31, f"{settings.slots} sequences of {each} tokens are too many cells")
    return total


def snapshots(model: Runnable, settings: ContextSettings, sequences: int, n_ubatch: int) -> int:
    """Return how many snapshots of recurrent states to ask for, per sequence.

    They bound the drafts: each drafted token has one. How large they are is measured.

    Raises:
        BackendError: llama.cpp cannot run the model.
        InputError: The requested number does not fit in n_ubatch.
    """
    if not model.is_stateful:
        return 0
    room = max(0, n_ubatch - 2)  # llama.cpp asserts that they and one more token fit
    if settings.n_rs_seq != "auto":
        count = settings.n_rs_seq
        _check(count <= room, f"n_rs_seq must be below n_ubatch - 1, got {count} of {n_ubatch}")
        return count
    size = model.state_bytes
    room = min(room, SNAPSHOTS if size <= SMALL_STATE else FEW_SNAPSHOTS)
    budget = max(SNAPSHOT_BYTES, model.size_bytes // 4)
    return min(room, budget // (max(1, size) * sequences))


def physical_cores() -> int:
    """Return the number of physical cores that this process may use, at least 1."""
    try:
        usable = os.sched_getaffinity(0)
        path = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        return max(1, len({Path(path.format(cpu)).read_text() for cpu in usable}))
    except (AttributeError, OSError):
        return max(1, (os.cpu_count() or 2) // 2)


def round_up(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise InputError(message)
