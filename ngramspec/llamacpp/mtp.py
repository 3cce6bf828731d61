"""open_mtp: the MTP heads of a target, as a draft source; open_second: any second source."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ngramspec.engine.sources.draft_model import DraftModel
from ngramspec.engine.sources.mtp import N_MAX, N_MIN, P_MIN, MtpHeads
from ngramspec.errors import BackendError
from ngramspec.llamacpp.assistant import open_assistant
from ngramspec.llamacpp.draft_model import DraftModelSettings, open_draft_model
from ngramspec.llamacpp.loading import Loading
from ngramspec.llamacpp.nextn import MOST_READ, NextnContext, staging_of
from ngramspec.llamacpp.placement import AUTO, Placement
from ngramspec.llamacpp.settings import ContextSettings, Runnable, context_params
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.text.tokenizers.gguf import read_tensors
from ngramspec.text.tokenizers.llama_library import Handle

# Families whose graphs of heads llama.cpp has: it would end the process with another's.
MIXTURES = ("glm4moe", "qwen35moe", "qwen3next")
SINGLE = (*MIXTURES, "qwen35")
CHAINED = ("step35",)


@dataclass(frozen=True, kw_only=True)
class MtpSettings:
    """How MTP heads draft, and where they are."""

    # a file of their own, an assistant such as Gemma 4's; None = in the model's
    path: str | os.PathLike[str] | None = None
    n_max: int = N_MAX  # longest draft
    n_min: int = N_MIN  # shorter drafts are dropped
    p_min: float = P_MIN  # a draft ends before a token that is less probable
    # where the weights of the file lie, on the target's devices; auto: on the GPU if all of the
    # target's are
    placement: Placement = field(default_factory=lambda: Placement(AUTO))


SecondSettings = DraftModelSettings | MtpSettings


def open_second(
    settings: SecondSettings, target: LlamaTarget, stack: contextlib.ExitStack
) -> DraftModel | MtpHeads:
    """Open what drafts beside n-gram drafters, a draft model or MTP heads; the stack closes it.

    Raises:
        As open_draft_model or open_mtp.
    """
    if isinstance(settings, MtpSettings):
        return open_mtp(settings, target, stack)
    return open_draft_model(settings, target, stack)


def open_mtp(settings: MtpSettings, target: LlamaTarget, stack: contextlib.ExitStack) -> MtpHeads:
    """Make the heads of a target draft for all of its slots; the stack closes them.

    Heads in the model's own file must have been loaded with it, see Loading.

    Raises:
        InputError: A setting is out of its bounds, or the file is no assistant of the target's.
        FormatError, OSError: The file cannot be read.
        BackendError: The model has no heads, was loaded without them, or is of a family whose heads
            llama.cpp cannot run; or llama.cpp lacks a function; says which.
        StateError: The heads have a file of their own, and the target holds tokens.
    """
    if settings.path is not None:
        source: MtpHeads = open_assistant(
            settings.path,
            target,
            stack,
            n_max=settings.n_max,
            n_min=settings.n_min,
            p_min=settings.p_min,
            placement=settings.placement,
        )
    else:
        heads = stack.enter_context(contextlib.closing(LlamaHeads(target, settings.n_max)))
        n_max, n_min, p_min = settings.n_max, settings.n_min, settings.p_min
        source = MtpHeads(heads, n_max, n_min, p_min, nbytes=heads.buffers.total)
    stack.callback(source.follow, False)
    return source


class LlamaHeads(NextnContext):
    """The MTP heads of a model: a second context on its weights, with a cache of its own.

    Args:
        target: On the model.
        most: Longest draft: each slot has room for one.

    Raises:
        BackendError: As open_mtp.
    """

    def __init__(self, target: LlamaTarget, most: int = N_MAX) -> None:
        model = target.model
        staging = staging_of(model)
        self.num_heads = count_heads(model)
        params = heads_params(model, target.settings, self.num_heads, most)
        super().__init__(target, model, params, staging)
        self._can_shift = self._context.can_shift()

    def truncate(self, sequence: int, length: int) -> None:
        self._context.truncate(sequence, length)

    def copy(self, source: int, sequence: int, length: int) -> bool:
        if self._target.min_copy is None:
            return False
        self._context.copy(source, sequence, length, whole=self._target.contiguous)
        return True

    def shift(self, sequence: int, first: int, count: int) -> bool:
        return self._can_shift and bool(self._context.shift(sequence, first, count))


class WithHeads(Runnable, Protocol):
    """A model that may have heads, with its weights or without."""

    handle: Handle
    loading: Loading

    @property
    def architecture(self) -> str: ...


def count_heads(model: WithHeads) -> int:
    """Return how many heads of a model's own file llama.cpp runs one after the other.

    Raises:
        BackendError: There are none, or they cannot be run.
        OSError, FormatError: The file cannot be read.
    """
    lib, name = model.library.lib, model.path.name
    layers = int(lib.llama_model_n_layer_nextn(model.handle.address))
    family = model.architecture
    if layers < 1:
        raise BackendError(f"{name} has no MTP heads: its file has no layers for them")
    if family not in (*SINGLE, *CHAINED):
        families = ", ".join((*SINGLE, *CHAINED))
        raise BackendError(f"MTP heads of {family} models are not supported, only of {families}")
    if not model.loading.mtp:
        raise BackendError(f"{name} was loaded without its MTP heads: set mtp of Loading")
    if family in SINGLE and layers > 1:
        raise BackendError(f"{name} has {layers} MTP heads, llama.cpp runs one of {family} models")
    first = int(lib.llama_model_n_layer(model.handle.address))
    heads = [f"blk.{layer}." for layer in range(first, first + layers)]
    tensors = read_tensors(model.path)
    if any(f"{head}nextn.eh_proj.weight" not in tensors for head in heads):
        raise BackendError(
            f"the weights of the MTP heads are missing in {name}: it was converted without them"
        )
    if family in MIXTURES and any(f"{head}ffn_gate_inp.weight" not in tensors for head in heads):
        raise BackendError(f"{name}: its MTP head has no experts, which llama.cpp needs there")
    return layers


def heads_params(model: Runnable, own: ContextSettings, num_heads: int, most: int) -> Any:
    """Return llama_context_params of heads, for a target's settings.

    Args:
        model: The target's.
        own: Settings of the target.
        num_heads: Heads that run one after the other.
        most: Longest draft.
    """
    settings = replace(
        own,
        pad=False,
        branches=1,
        max_outputs=0,
        n_batch=max(MOST_READ, own.slots * num_heads),
        cells=own.cells and own.cells + most * own.slots,
    )
    params = context_params(model, settings)
    params.ctx_type = model.library.lib.LLAMA_CONTEXT_TYPE_MTP
    params.n_rs_seq = 0
    return params
