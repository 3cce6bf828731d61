"""Observation: what the target's logits said, for the sources that learn from them."""

from libc.math cimport exp

from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.top cimport NGS_TOP_MOST, ngs_top


cdef Py_ssize_t observation_most(const SlotC* s, bint placed, Py_ssize_t position) noexcept nogil:
    if not placed:
        return s.draft_len + 1 if s.history.len else 0
    return s.base + s.history.len - position if 0 <= position <= s.base + s.history.len else -1


cdef void _history_context(const HistoryC* h, Py_ssize_t at, token_t* before, token_t* last) noexcept nogil:
    """Set the token at an index of the history, and the one before it."""
    last[0] = h.tokens[at]
    before[0] = h.tokens[at - 1] if at > 0 else -1


cdef void _draft_context(const SlotC* s, Py_ssize_t row, token_t* before, token_t* last) noexcept nogil:
    """Set the tokens that a row of the pending draft's pass follows."""
    cdef const HistoryC* h = &s.history
    cdef Py_ssize_t parent
    if row == 0:
        _history_context(h, h.len - 1, before, last)
        return
    last[0] = s.draft[row - 1]
    parent = s.parents[row - 1] if s.branched else row - 2
    before[0] = s.draft[parent] if parent >= 0 else h.tokens[h.len - 1]


cdef bint _context(const DriverC* d, Py_ssize_t slot, Py_ssize_t position, Py_ssize_t row, token_t* before,
                   token_t* last) noexcept nogil:
    """Set the tokens that a row follows. False: the slot does not hold them any more."""
    cdef const SlotC* s = &d.slots[slot]
    if position < 0:
        _draft_context(s, row, before, last)
    elif position + row >= s.base:
        _history_context(&s.history, position + row - s.base, before, last)
    else:
        return False
    return True


cdef void observation_tell(DriverC* d, token_t before, token_t last, const token_t* tokens, const float* p,
                           Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(d.num_sources):
        if d.sources[i].top:
            d.sources[i].observe(d.sources[i].state, before, last, tokens, p, min(n, d.sources[i].top))


cdef void observation_show_logits(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const float* rows,
                                  Py_ssize_t num_rows, Py_ssize_t vocab_size) noexcept nogil:
    cdef token_t[NGS_TOP_MOST] tokens
    cdef float[NGS_TOP_MOST] p
    cdef token_t before = -1, last = -1
    cdef Py_ssize_t i
    cdef int n
    for i in range(num_rows if d.top else 0):
        if _context(d, slot, position, i, &before, &last):
            n = ngs_top(rows + i * vocab_size, vocab_size, <int>d.top, tokens, p)
            observation_tell(d, before, last, tokens, p, n)


cdef void observation_show_top(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const token_t* tokens, const float* logs,
                               Py_ssize_t num_rows, Py_ssize_t width) noexcept nogil:
    cdef float[NGS_TOP_MOST] p
    cdef token_t before = -1, last = -1
    cdef Py_ssize_t n = min(width, d.top), i, k
    for i in range(num_rows if n else 0):
        if _context(d, slot, position, i, &before, &last):
            for k in range(n):
                p[k] = <float>min(exp(logs[i * width + k]), 1.0)
            observation_tell(d, before, last, tokens + i * width, p, n)
