# Plan: which tokens of which slots are in the next decode.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.engine.slot cimport Slot

cdef class Plan(Owner):
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t outputs  # most rows of logits
    cdef readonly Py_ssize_t prompt_rows  # most rows for log-probabilities of prompts, per slot that does not decode
    cdef tuple slots          # of Slot
    cdef list work            # of Slot: those with a count > 0; decoding ones first, then prompts by age
    cdef Py_ssize_t* claims   # one per slot
    cdef object clock
    cdef object shorten       # called with a slot and the length of its draft before that is cut, or None
    cdef Py_ssize_t tokens    # of the last decode
    cdef double seconds       # that it took

    cdef int fit_rows(self, Slot slot, Py_ssize_t rows) except -1
    cdef Py_ssize_t room_for_drafts(self)
    cdef void shrink_prompts(self)
    cdef int cut_draft(self, Slot slot, Py_ssize_t length) except -1
    cdef int share_drafts(self) except -1
