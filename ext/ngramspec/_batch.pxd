# Batch: the tokens of one decode, for many sequences.
from ngramspec._types cimport int8_t, int32_t, token_t

cdef class Batch:
    cdef token_t* tokens       # capacity entries each
    cdef int32_t* positions    # place of the token in its sequence
    cdef int32_t* sequences    # sequence id
    cdef int8_t* outputs       # 1 = its logits are wanted
    cdef Py_ssize_t len
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t num_outputs
    cdef void put(self, token_t token, Py_ssize_t position, int32_t sequence, bint output) noexcept nogil
