"""The size of the state that a recurrent or hybrid model keeps for each sequence."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ngramspec.errors import BackendError
from ngramspec.text.tokenizers.llama_library import Handle

if TYPE_CHECKING:
    from ngramspec.llamacpp.model import LlamaModel

CONTEXT = 256  # tokens; the smallest that llama.cpp makes


def measure_state(model: LlamaModel) -> int:
    """Return the bytes of a sequence's state, measured on one token in a small context.

    Metadata does not tell: each family of models has its own keys for what its layers keep.

    Raises:
        BackendError: llama.cpp cannot run the model.

    Cost: a decode of one token, which reads all weights.
    """
    lib = model.library.lib
    params = lib.llama_context_default_params()
    params.n_ctx = CONTEXT
    params.n_batch = params.n_ubatch = params.n_seq_max = 1
    params.no_perf = True
    address = lib.llama_init_from_model(model.handle.address, params)
    if not address:
        raise BackendError(f"{model.path}: llama.cpp cannot make a context to measure its state")
    context = Handle(lib.llama_free, address, model.handle)
    try:
        token = (lib.llama_token * 1)(max(0, model.bos))
        if lib.llama_decode(address, lib.llama_batch_get_one(token, 1)):
            raise BackendError(f"{model.path}: llama.cpp cannot run it to measure its state")
        flags = ctypes.c_uint32(lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        return int(lib.llama_state_seq_get_size_ext(address, 0, flags))
    finally:
        context.free()
