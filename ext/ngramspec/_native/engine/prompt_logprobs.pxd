# PromptLogprobs: how likely each token of a prompt was to the target.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, token_t

cdef class PromptLogprobs(Owner):
    cdef readonly Py_ssize_t size   # tokens that are told of: all of the prompt but its first
    cdef readonly Py_ssize_t top    # likeliest tokens that are kept for each
    cdef Py_ssize_t len             # of these tokens, from the first on, those that are known
    cdef float* logprobs            # per token
    cdef int32_t* ranks             # per token, from 1 on
    cdef token_t* likeliest         # `top` per token, -1 = no further one is possible
    cdef float* likely              # their log-probabilities
    cdef void add(self, const float* row, Py_ssize_t vocab_size, token_t token) noexcept nogil
