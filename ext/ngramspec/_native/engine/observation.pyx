"""Observation: a drafter that learns from logits is shown the rows of a slot's pass."""

from ngramspec._native.core.top cimport NGS_TOP_MOST, ngs_top
from ngramspec._native.core.types cimport token_t
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.drafter.observation cimport observation_tell
from ngramspec._native.engine.decode cimport MUCH_TO_READ, RowsC
from ngramspec._native.engine.slot cimport Slot

cdef enum:
    MOST_OBSERVED = 16  # rows of a slot that a drafter is shown: one takes ten times as long as finding its maximum


cdef void _observe_row(Slot slot, Drafter drafter, const float* logits, Py_ssize_t vocab_size, Py_ssize_t row) noexcept nogil:
    """Tell what the target would have said after the text, or after a token of the draft."""
    cdef token_t[NGS_TOP_MOST] tokens
    cdef float[NGS_TOP_MOST] p
    cdef token_t before, last = slot.data[slot.length - 1]
    cdef Py_ssize_t parent
    cdef int n = ngs_top(logits + row * vocab_size, vocab_size, <int>drafter.d.top, tokens, p)
    if row == 0:
        before = slot.data[slot.length - 2] if slot.length > 1 else -1
    else:
        parent = slot.parents[row - 1] if slot.branched else row - 2
        before = slot.guess[parent] if parent >= 0 else last
        last = slot.guess[row - 1]
    with drafter._lock:
        observation_tell(&drafter.d, before, last, tokens, p, n)


cdef void _observe_rows(Slot slot, Drafter drafter, const float* logits, Py_ssize_t vocab_size,
                        Py_ssize_t count) noexcept nogil:
    """Show the rows that tokens were chosen from, then others."""
    cdef Py_ssize_t i, row, right = 0, left = MOST_OBSERVED
    for i in range(min(count, left)):
        _observe_row(slot, drafter, logits, vocab_size, slot.rows[i])
        left -= 1
    for row in range(slot.num_guessed + 1):
        if left == 0:
            break
        if right < count and slot.rows[right] == row:
            right += 1
            continue
        _observe_row(slot, drafter, logits, vocab_size, row)
        left -= 1


cdef void slot_observe(Slot slot, const RowsC* rows, Py_ssize_t count) noexcept:
    cdef Drafter drafter = slot.learner
    cdef const float* logits = rows.data + slot.first_row * rows.vocab_size
    if drafter is None:
        return
    if min(slot.num_guessed + 1, <Py_ssize_t>MOST_OBSERVED) * rows.vocab_size < MUCH_TO_READ:
        _observe_rows(slot, drafter, logits, rows.vocab_size, count)
    else:
        with nogil:
            _observe_rows(slot, drafter, logits, rows.vocab_size, count)
