# Slots: owner of a DriverC, base class of Drafter.
cimport cython

from ngramspec._auto cimport AutoPolicy
from ngramspec._driver cimport DriverC, SlotC

cdef class Slots:
    cdef DriverC d
    cdef tuple _sources         # keeps the kernels' state alive
    cdef AutoPolicy _policy     # that shortens drafts, None = they stay as they are
    cdef cython.pymutex _lock   # held around every use of d
    cdef int _make_rows(self, SlotC* s) except -1
    cdef const char* _broken(self, Py_ssize_t slot) noexcept
    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL
    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL
