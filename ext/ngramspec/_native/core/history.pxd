# HistoryC: the tokens of one slot, prompt and committed output, oldest first.
from ngramspec._native.core.types cimport Status, token_t

cdef struct HistoryC:
    token_t* tokens       # num_tokens valid, the newest last; owned
    Py_ssize_t len        # tokens held
    Py_ssize_t capacity   # tokens allocated, >= len

cdef Status history_reserve(HistoryC* h, Py_ssize_t extra) noexcept nogil
cdef void history_append(HistoryC* h, const token_t* tokens, Py_ssize_t n) noexcept nogil
cdef Py_ssize_t history_common_prefix(const HistoryC* h, const token_t* tokens, Py_ssize_t n) noexcept nogil
cdef void history_continue(const HistoryC* h, Py_ssize_t start, token_t* out, Py_ssize_t n) noexcept nogil
cdef void history_free(HistoryC* h) noexcept nogil

cdef Py_ssize_t common_prefix(const token_t* a, const token_t* b, Py_ssize_t n) noexcept nogil
