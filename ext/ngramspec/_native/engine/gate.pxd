# Gate: the engine's default draft-length policy.
from ngramspec._native.core.types cimport int64_t

# What one source did for one slot.
cdef struct LaneC:
    bint begun        # the source was asked since the slot's request began
    Py_ssize_t limit  # longest draft allowed
    Py_ssize_t rest   # steps left in which the source is not asked
    Py_ssize_t pause  # length of the next rest in steps
    double rate       # running share of drafted tokens that were accepted

cdef class _Lanes:
    cdef LaneC* lanes       # by slot
    cdef Py_ssize_t count
    cdef double share       # running share of accepted tokens over all slots
    cdef LaneC* of(self, Py_ssize_t slot) except NULL

cdef class Gate:
    cdef Py_ssize_t _max_draft
    cdef dict _sources      # name -> _Lanes
    cdef _Lanes lanes_of(self, str source)
    cdef Py_ssize_t ask(self, _Lanes lanes, Py_ssize_t slot) except -1
    cdef int learn(self, _Lanes lanes, Py_ssize_t slot, Py_ssize_t drafted, Py_ssize_t accepted) except -1

# Call any policy: a Gate natively, others in Python.
cdef Py_ssize_t policy_limit(object policy, Py_ssize_t slot, str source) except -1
cdef int policy_record(object policy, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1
