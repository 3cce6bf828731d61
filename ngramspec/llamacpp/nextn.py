"""NextnContext: a context beside a target whose tokens come with states, as MTP heads need it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec._native.hosts import llama as native_llama
from ngramspec._native.hosts.llama import LlamaContext
from ngramspec.engine.sources.mtp import MtpHeads, States
from ngramspec.errors import BackendError, StateError
from ngramspec.llamacpp.contexts import LoadedModel, make_context
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget, failure_of

# llama.cpp's staging functions, by the names that GCC and Clang give them. They may change with
# any release, so nothing but MTP depends on them.
STAGING = {
    "llama_set_embeddings_nextn": "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "llama_get_embeddings_nextn": "_Z26llama_get_embeddings_nextnP13llama_context",
    "llama_set_nextn_layer_offset": "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
    "llama_get_ctx_other": "_Z19llama_get_ctx_otherP13llama_context",
}
PUBLIC = ("llama_model_n_layer_nextn", "llama_model_n_embd_out", "LLAMA_CONTEXT_TYPE_MTP")
MOST_READ = 512  # tokens that are read in one pass


class NextnContext:
    """A context of heads or of an assistant, for all slots of a target.

    Args:
        target: Whose states come with the tokens.
        model: Of the context: the target's own, or another one.
        params: llama_context_params.
        staging: As staging_of gives them.

    Raises:
        BackendError: llama.cpp cannot make the context.

    buffers: The memory that it takes.
    """

    num_heads = 1

    def __init__(
        self, target: LlamaTarget, model: LlamaModel, params: Any, staging: dict[str, Any]
    ) -> None:
        self._staging = staging
        lib = model.library.lib
        self.vocab_size = model.vocab_size
        self.state_width = int(lib.llama_model_n_embd_out(model.handle.address))
        self.num_sequences, self.context_size = target.num_sequences, target.context_size
        self.max_batch = int(params.n_batch)
        self._model, self._target = model, target
        self._handle, self.buffers = make_context(model, params, target.num_sequences)
        self._context = LlamaContext(
            model.library.calls,
            self._handle.address,
            self.vocab_size,
            self.max_batch,
            num_sequences=self.num_sequences,
            context_size=self.context_size,
            state_width=self.state_width,
        )
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

    def is_end(self, token_id: int) -> bool:
        return self._target.is_end(token_id)

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


def staging_of(model: LoadedModel) -> dict[str, Any]:
    """Return llama.cpp's staging functions by their C++ names.

    Raises:
        BackendError: This release lacks one.
    """
    lib = model.library.lib
    missing = [name for name in PUBLIC if not hasattr(lib, name)]
    functions: dict[str, Any] = {}
    for name, mangled in STAGING.items():
        try:
            functions[name] = lib._lib[mangled]
        except AttributeError:
            missing.append(name)
    if missing:
        raise BackendError(
            f"this llama.cpp cannot run MTP heads, it lacks {', '.join(missing)}: "
            "llama-cpp-python 0.3.36 has them"
        )
    context = ctypes.c_void_p
    functions["llama_set_embeddings_nextn"].argtypes = [context, ctypes.c_bool, ctypes.c_bool]
    functions["llama_set_embeddings_nextn"].restype = None
    functions["llama_get_embeddings_nextn"].argtypes = [context]
    functions["llama_get_embeddings_nextn"].restype = ctypes.POINTER(ctypes.c_float)
    functions["llama_set_nextn_layer_offset"].argtypes = [context, ctypes.c_int32]
    functions["llama_set_nextn_layer_offset"].restype = None
    functions["llama_get_ctx_other"].argtypes = [context]
    functions["llama_get_ctx_other"].restype = ctypes.c_void_p
    return functions
