# Constraint: what one text must follow, token by token, whatever reads its grammar.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, token_t, uint64_t

# Kernels of a constraint; `state` is its own struct.
cdef struct ConstraintC:
    void* state
    Py_ssize_t vocab_size
    # whether a token may come next; False also on a problem
    bint (*allows)(void* state, token_t token) noexcept nogil
    # a bit per token that may come next, until the next call; NULL on a problem
    const uint64_t* (*mask)(void* state) noexcept nogil
    # go on by a token; False, and nothing changes, if it is not allowed or on a problem
    bint (*accept)(void* state, token_t token) noexcept nogil
    # set for each token of a draft, 1 or 0, whether it may come after its parent; NULL: after the one before it
    void (*fits)(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil
    # write the tokens of text that must come next, `limit` at most; return their number
    Py_ssize_t (*forced)(void* state, token_t* out, Py_ssize_t limit) noexcept nogil

cdef class Constraint(Owner):
    cdef ConstraintC c
    cdef int _check(self, Py_ssize_t token) except -1
