# Sampler: how one request chooses a token from a row of logits.
from ngramspec._types cimport token_t

# Kernels of a sampler; `state` is its own struct or handle.
cdef struct SamplerC:
    void* state
    # choose from vocab_size logits; -1 when no token is possible. The row is not changed.
    token_t (*choose)(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil
    # the chosen token is emitted: penalties, grammar and the like advance
    void (*accept)(void* state, token_t token) noexcept nogil

cdef class Sampler:
    cdef SamplerC c
