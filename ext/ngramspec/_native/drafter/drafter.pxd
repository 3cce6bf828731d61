# Drafter: owns the slots and sources.
cimport cython

from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int64_t
from ngramspec._native.drafter.driver cimport DriverC, LanesC, SlotC
from ngramspec._native.policy.auto cimport AutoPolicy


cdef class Drafter(Owner):
    cdef DriverC d
    cdef DriverC _tails         # see d.tails
    cdef tuple _sources         # keeps the kernels' state alive
    cdef AutoPolicy _policy     # shortens drafts; None = they are not shortened
    cdef AutoPolicy _judge      # values drafts now: _policy, or an engine's policy
    cdef cython.pymutex _lock   # held around every use of d
    cdef int _threads           # most that work on a batch
    cdef LanesC _lanes          # these threads, fewer where there are few slots
    cdef int64_t _drafted       # batches that were drafted for; guarded by the GIL
    cdef int64_t _followed      # batches that were followed; the same
    cdef int judge_by(self, AutoPolicy policy) except -1
    cdef int _calibrate(self, AutoPolicy policy) except -1
    cdef int _make_rows(self, SlotC* s, Py_ssize_t more) except -1
    cdef int make_tails(self) except -1
    cdef const char* _broken(self, Py_ssize_t slot) noexcept
    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL
    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL
