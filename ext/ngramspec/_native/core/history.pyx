"""The token history of a slot: append, compare and copy, with no work per token in Python."""

from libc.string cimport memcmp, memcpy

from ngramspec._native.core.types cimport STATUS_NO_MEMORY, STATUS_OK, ngs_extend, ngs_release


cdef Status grow(void** memory, Py_ssize_t* capacity, Py_ssize_t needed, size_t item_bytes) noexcept nogil:
    """Make room for `needed` items, growing by at least half. On Linux large blocks are remapped, not copied.

    The owner frees the memory with ngs_release.
    """
    cdef Py_ssize_t room
    cdef void* moved
    if needed <= capacity[0]:
        return STATUS_OK
    room = capacity[0] + (capacity[0] >> 1) + 16
    if room < needed:
        room = needed
    if <size_t>room > (<size_t>-1) // 2 // item_bytes:
        return STATUS_NO_MEMORY
    moved = ngs_extend(memory[0], <size_t>capacity[0] * item_bytes, <size_t>room * item_bytes)
    if moved == NULL:
        return STATUS_NO_MEMORY
    memory[0] = moved
    capacity[0] = room
    return STATUS_OK


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
