# DecisionTrace: what sources offered, what was sent of it, and what came of it, pass by pass.
cimport cython

from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int64_t, token_t
from ngramspec._native.drafter.driver cimport DriverC, SlotC


cdef class DecisionTrace(Owner):
    cdef list chains             # names of drafters
    cdef int32_t* words          # decisions one after the other, each with its number of words first; see add
    cdef Py_ssize_t num_words
    cdef int32_t* drained        # those that are drained, up to `place` so far
    cdef Py_ssize_t num_drained
    cdef Py_ssize_t place
    cdef cython.pymutex _lock    # held around every use of words and num_words
    cdef readonly int64_t num_dropped
    cdef Py_ssize_t chain_of(self, tuple names) except -1
    cdef void add(self, const DriverC* d, const SlotC* s, int64_t request, Py_ssize_t chain, bint shadow,
                  Py_ssize_t sent, Py_ssize_t accepted, const token_t* tokens, Py_ssize_t n) noexcept
    cdef void swap(self) noexcept
    cdef dict shown(self, const int32_t* words)
