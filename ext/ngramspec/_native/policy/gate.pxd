# Gate: draft lengths by what was right lately; a part of AutoPolicy.

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
    cdef int begin(self, Py_ssize_t slot) except -1
    cdef Py_ssize_t ask(self, Py_ssize_t slot, str source) except -1
    cdef int learn(self, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1
