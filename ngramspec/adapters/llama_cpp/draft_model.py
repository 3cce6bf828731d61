"""open_draft_model: a second, smaller model as a draft source beside a target."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace

from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.placement import AUTO, Placement
from ngramspec.adapters.llama_cpp.settings import ContextSettings
from ngramspec.adapters.llama_cpp.target import LlamaTarget
from ngramspec.engine.draft_model import N_MAX, N_MIN, P_MIN, DraftModel, check_vocabulary


@dataclass(frozen=True, kw_only=True)
class DraftModelSettings:
    """A draft model: its file, how it drafts, and how it runs."""

    path: str | os.PathLike[str]
    name: str = ""  # what to call it; "" = as its file
    n_max: int = N_MAX  # longest draft
    n_min: int = N_MIN  # shorter drafts are dropped
    p_min: float = P_MIN  # a draft ends before a token that is less probable
    # where its weights lie; auto: on the GPU if all of the target's are
    placement: Placement = field(default_factory=lambda: Placement(AUTO))
    context_size: int = 0  # tokens per slot, 0 = as the target
    threads: int | None = None  # None = as the target
    threads_batch: int | None = None  # None = as the target, or as threads
    type_k: str = "f16"
    type_v: str = "f16"


def open_draft_model(
    settings: DraftModelSettings, target: LlamaTarget, stack: contextlib.ExitStack
) -> DraftModel:
    """Load a draft model for all slots of a target; the stack closes it.

    Raises:
        FormatError, OSError: The file cannot be read.
        InputError: A setting is out of its bounds, or the model cannot take tokens back.
        BackendError: llama.cpp cannot run it, or its vocabulary differs from the target's.
    """
    model = stack.enter_context(LlamaModel(settings.path, placement=settings.placement))
    context = draft_context(settings, target.settings, target.context_size)
    small = stack.enter_context(LlamaTarget(model, context))
    check_vocabulary(target, small)
    most = small.max_rollback or max(settings.n_max, settings.n_min)  # what it can take back
    return DraftModel(
        small,
        min(settings.n_max, most),
        min(settings.n_min, most),
        settings.p_min,
        label=settings.name,
        path=os.fspath(settings.path),
        nbytes=model.size_bytes + small.buffers.total,
    )


def draft_context(
    settings: DraftModelSettings, own: ContextSettings, context_size: int
) -> ContextSettings:
    """Return how a draft model's context is made, for a target's settings and tokens per slot."""
    threads = settings.threads
    return replace(
        own,
        context_size=settings.context_size or context_size,
        threads=threads or own.threads,
        threads_batch=settings.threads_batch or threads or own.threads_batch,
        flash_attn="auto",
        type_k=settings.type_k,
        type_v=settings.type_v,
        kv_unified=False,
        cells=0,
        max_outputs=0,
        n_rs_seq="auto",
        pad=False,
        branches=1,
    )
