"""open_mtp: the MTP heads of a target's own model, as a draft source; open_second: any such one."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec._native.hosts import llama as native_llama
from ngramspec._native.hosts.llama import LlamaContext
from ngramspec.adapters.llama_cpp.contexts import make_context
from ngramspec.adapters.llama_cpp.draft_model import DraftModelSettings, open_draft_model
from ngramspec.adapters.llama_cpp.model import LlamaModel
from ngramspec.adapters.llama_cpp.settings import context_params
from ngramspec.adapters.llama_cpp.target import LlamaTarget, failure_of
from ngramspec.engine.draft_model import DraftModel
from ngramspec.engine.mtp import N_MAX, N_MIN, P_MIN, MtpHeads, States
from ngramspec.errors import BackendError, StateError

# llama.cpp's staging functions, by the names that GCC and Clang give them. They may change with
# any release, so nothing but MTP depends on them.
STAGING = {
    "llama_set_embeddings_nextn": "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "llama_get_embeddings_nextn": "_Z26llama_get_embeddings_nextnP13llama_context",
    "llama_set_nextn_layer_offset": "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
}
PUBLIC = ("llama_model_n_layer_nextn", "llama_model_n_embd_out")
# Families whose graphs of heads llama.cpp has: it would end the process with another's.
MIXTURES = ("glm4moe", "qwen35moe", "qwen3next")
SINGLE = (*MIXTURES, "qwen35")
CHAINED = ("step35",)
MOST_READ = 512  # tokens that the heads read in one pass


@dataclass(frozen=True, kw_only=True)
class MtpSettings:
    """How MTP heads draft."""

    n_max: int = N_MAX  # longest draft
    n_min: int = N_MIN  # shorter drafts are dropped
    p_min: float = P_MIN  # a draft ends before a token that is less probable


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
    """Make the heads of a target's model draft for all of its slots; the stack closes them.

    The model must have been loaded with them, see Loading.

    Raises:
        InputError: A setting is out of its bounds.
        BackendError: The model has no heads, was loaded without them, or is of a family whose heads
            llama.cpp cannot run; or llama.cpp lacks a function; says which.
    """
    heads = stack.enter_context(contextlib.closing(LlamaHeads(target, settings.n_max)))
    made = MtpHeads(
        heads,
        settings.n_max,
        settings.n_min,
        settings.p_min,
        nbytes=heads.nbytes,
    )
    stack.callback(made.follow, False)
    return made


class LlamaHeads:
    """The MTP heads of a model: a second context on its weights, with a cache of its own.

    Args:
        target: On the model.
        most: Longest draft: each slot has room for one.

    Raises:
        BackendError: As open_mtp.
    """

    def __init__(self, target: LlamaTarget, most: int = N_MAX) -> None:
        model = target.model
        self._staging = _staging(model)
        self.num_heads = _num_heads(model)
        lib = model.library.lib
        self.vocab_size = target.vocab_size
        self.state_width = int(lib.llama_model_n_embd_out(model.handle.address))
        self.num_sequences, self.context_size = target.num_sequences, target.context_size
        cells = target.settings.cells
        settings = replace(
            target.settings,
            pad=False,
            branches=1,
            max_outputs=0,
            n_batch=max(MOST_READ, target.num_sequences * self.num_heads),
            cells=cells and cells + most * target.num_sequences,
        )
        params = context_params(model, settings)
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP
        params.n_rs_seq = 0
        self.max_batch = int(params.n_batch)
        self._model, self._target = model, target
        self._handle, buffers = make_context(model, params, settings.slots)
        self.nbytes = buffers.total
        self._context = LlamaContext(
            model.library.calls,
            self._handle.address,
            self.vocab_size,
            self.max_batch,
            num_sequences=self.num_sequences,
            context_size=self.context_size,
            state_width=self.state_width,
        )
        self._can_shift = self._context.can_shift()
        model.use(self)
        self._set_states(self._handle.address, True, masked=True)  # those of outputs

    def decode(self, batch: Batch, states: States, rows: Rows, head: int) -> States:
        """Compute a batch with one head; return the states of its outputs, valid until the next.

        Raises:
            BackendError: It failed.
            CapacityError: The cache has no room for it.
        """
        if self.num_heads > 1:
            self._staging["llama_set_nextn_layer_offset"](self._handle.address, head)
        status = self._context.decode(batch, rows, states)
        if status:
            log = native_llama.log_since(self._context.log_start)
            raise failure_of(status, len(batch), log)
        return self._view(self._handle.address, len(rows))

    def truncate(self, sequence: int, length: int) -> None:
        """Remove what is at position `length` and after it."""
        self._context.truncate(sequence, length)

    def copy(self, source: int, sequence: int, length: int) -> bool:
        """Make an empty sequence hold the first `length` entries of another; False = it cannot."""
        if self._target.min_copy is None:
            return False
        self._context.copy(source, sequence, length, whole=self._target.contiguous)
        return True

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Remove `count` entries from `first` on; the others move down. False = it cannot."""
        return self._can_shift and bool(self._context.shift(sequence, first, count))

    def is_end(self, token_id: int) -> bool:
        """Return whether the token ends a generation."""
        return self._model.is_end(token_id)

    def listen(self, follower: MtpHeads | None) -> None:
        """Have the target tell a follower of its decodes and changes from now on; None = nobody.

        Raises:
            StateError: The target is closed, and there is a follower.
        """
        if self._target.closed:
            if follower is None:
                return
            raise StateError("the target is closed")
        address = self._target.address
        self._set_states(address, follower is not None, masked=False)
        self._target.follow(follower, lambda count: self._view(address, count))

    def close(self) -> None:
        """Free the context; a second call does nothing."""
        self._context.close()
        self._handle.free()

    def _set_states(self, address: Any, value: bool, *, masked: bool) -> None:
        self._staging["llama_set_embeddings_nextn"](address, value, masked)

    def _view(self, address: Any, num_rows: int) -> States:
        """Return the states of a context's last decode, in place."""
        if not num_rows:
            return np.empty((0, self.state_width), dtype=np.float32)
        pointer = self._staging["llama_get_embeddings_nextn"](address)
        if not pointer:
            raise BackendError("llama.cpp gives no states for MTP heads")
        return np.ctypeslib.as_array(pointer, shape=(num_rows, self.state_width))


def _num_heads(model: LlamaModel) -> int:
    """Return how many heads llama.cpp runs one after the other.

    Raises:
        BackendError: There are none, or they cannot be run.
    """
    lib, name = model.library.lib, model.path.name
    layers = int(lib.llama_model_n_layer_nextn(model.handle.address))
    family = model.architecture
    if layers < 1:
        raise BackendError(f"{name} has no MTP heads: its file has no layers for them")
    if family not in (*SINGLE, *CHAINED):
        known = ", ".join((*SINGLE, *CHAINED))
        raise BackendError(f"MTP heads of {family} models are not supported, only of {known}")
    if not model.loading.mtp:
        raise BackendError(f"{name} was loaded without its MTP heads: set mtp of Loading")
    if family in SINGLE and layers > 1:
        raise BackendError(f"{name} has {layers} MTP heads, llama.cpp runs one of {family} models")
    if not model.mtp_heads_have("nextn.eh_proj.weight"):
        raise BackendError(
            f"the weights of the MTP heads are missing in {name}: it was converted without them"
        )
    if family in MIXTURES and not model.mtp_heads_have("ffn_gate_inp.weight"):
        raise BackendError(f"{name}: its MTP head has no experts, which llama.cpp needs there")
    return layers


def _staging(model: LlamaModel) -> dict[str, Any]:
    """Return llama.cpp's staging functions by their C++ names.

    Raises:
        BackendError: This release lacks one.
    """
    lib = model.library.lib
    missing = [name for name in (*PUBLIC, "LLAMA_CONTEXT_TYPE_MTP") if not hasattr(lib, name)]
    found: dict[str, Any] = {}
    for name, mangled in STAGING.items():
        try:
            found[name] = lib._lib[mangled]
        except AttributeError:
            missing.append(name)
    if missing:
        raise BackendError(
            f"this llama.cpp cannot run MTP heads, it lacks {', '.join(missing)}: "
            "llama-cpp-python 0.3.36 has them"
        )
    context = ctypes.c_void_p
    found["llama_set_embeddings_nextn"].argtypes = [context, ctypes.c_bool, ctypes.c_bool]
    found["llama_set_embeddings_nextn"].restype = None
    found["llama_get_embeddings_nextn"].argtypes = [context]
    found["llama_get_embeddings_nextn"].restype = ctypes.POINTER(ctypes.c_float)
    found["llama_set_nextn_layer_offset"].argtypes = [context, ctypes.c_int32]
    found["llama_set_nextn_layer_offset"].restype = None
    return found
