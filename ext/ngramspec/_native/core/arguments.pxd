# The one place that turns Python arguments into C ones.
from cpython.buffer cimport Py_buffer

from ngramspec._native.core.types cimport int32_t, token_t, uint64_t

# Tokens of a Python argument, viewed in place; free with tokens_release.
cdef struct TokensC:
    const token_t* data   # NULL when len is 0
    Py_ssize_t len
    Py_buffer buffer      # keeps data alive

cdef int tokens_view(object token_ids, str name, TokensC* tokens, bint check=*) except -1
cdef object bad_token(str name, int token, Py_ssize_t position, Py_ssize_t vocab_size)
cdef void tokens_release(TokensC* tokens)
cdef const token_t[::1] token_view(object token_ids, str name)
cdef bint overlap(const int32_t* one, Py_ssize_t num, const int32_t* other, Py_ssize_t num_other) noexcept nogil
cdef const token_t[:, ::1] token_rows_view(object values, str name)
cdef const float[:, ::1] logits_view(object values, str name=*)
cdef const uint64_t[:, ::1] entries_view(object entries)
cdef const int32_t[::1] parents_view(object values, Py_ssize_t n)
cdef const float[::1] probabilities_view(object values, str name)
