"""The token history of a slot: append, compare and copy, with no work per token in Python."""

from libc.string cimport memcmp, memcpy

from ngramspec._native.core.memory cimport grow
from ngramspec._native.core.types cimport ngs_release


cdef Status history_reserve(HistoryC* h, Py_ssize_t extra) noexcept nogil:
    return grow(<void**>&h.tokens, &h.capacity, h.len + extra, sizeof(token_t))


cdef void history_append(HistoryC* h, const token_t* tokens, Py_ssize_t n) noexcept nogil:
    """Append after history_reserve has made the room."""
    if n > 0:
        memcpy(h.tokens + h.len, tokens, <size_t>n * sizeof(token_t))
        h.len += n


cdef Py_ssize_t common_prefix(const token_t* a, const token_t* b, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t block = 1024
    while i + block <= n and memcmp(a + i, b + i, <size_t>block * sizeof(token_t)) == 0:
        i += block
    while i < n and a[i] == b[i]:
        i += 1
    return i


cdef Py_ssize_t history_common_prefix(const HistoryC* h, const token_t* tokens, Py_ssize_t n) noexcept nogil:
    return common_prefix(h.tokens, tokens, n if n < h.len else h.len)


cdef void history_continue(const HistoryC* h, Py_ssize_t start, token_t* out, Py_ssize_t n) noexcept nogil:
    """Copy n tokens from `start` on; past the end it repeats what it copied, so loops continue."""
    cdef Py_ssize_t copied = h.len - start
    cdef Py_ssize_t i
    if copied > n:
        copied = n
    memcpy(out, h.tokens + start, <size_t>copied * sizeof(token_t))
    for i in range(copied, n):
        out[i] = out[i - copied]


cdef void history_free(HistoryC* h) noexcept nogil:
    ngs_release(h.tokens, <size_t>h.capacity * sizeof(token_t))
    h.tokens = NULL
    h.len = h.capacity = 0
