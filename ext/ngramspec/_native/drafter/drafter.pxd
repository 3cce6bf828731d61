# Drafter: owner of the slots and sources, and one way to draft for a slot and to take up what was emitted.
cimport cython

from ngramspec._native.core.types cimport Status, token_t, uint8_t
from ngramspec._native.drafter.driver cimport DriverC, SlotC
from ngramspec._native.policy.auto cimport AutoPolicy, CandidateC

cdef class Drafter:
    cdef DriverC d
    cdef tuple _sources         # keeps the kernels' state alive
    cdef AutoPolicy _policy     # that shortens drafts, None = they stay as they are
    cdef cython.pymutex _lock   # held around every use of d
    cdef int _make_rows(self, SlotC* s) except -1
    cdef const char* _broken(self, Py_ssize_t slot) noexcept
    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL
    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL
    cdef Py_ssize_t _offer(self, Py_ssize_t slot, Py_ssize_t room) except -1

cdef Py_ssize_t drafter_offer(Drafter drafter, AutoPolicy policy, Py_ssize_t slot, Py_ssize_t limit, Py_ssize_t room,
                              const uint8_t[::1] valid, Py_ssize_t batch_tokens, Py_ssize_t decoding,
                              CandidateC* best) except -1
cdef Status drafter_commit(Drafter drafter, AutoPolicy policy, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                           Py_ssize_t num_accepted) except *
