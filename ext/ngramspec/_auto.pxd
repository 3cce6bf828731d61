# AutoPolicy: draft lengths from what tokens are worth and what passes cost.
from ngramspec._calibration cimport Calibrations
from ngramspec._candidate cimport CandidateC, Chooser
from ngramspec._pass_costs cimport PassCosts

cdef class AutoPolicy:
    cdef Py_ssize_t _max_draft
    cdef Py_ssize_t _fixed           # -1 = none
    cdef PassCosts _costs            # add() learns what a pass took
    cdef Chooser _chooser
    cdef double _emitted             # tokens lately, all slots
    cdef double _passes              # time lately, in passes over one token
    cdef bint _exploring             # the pass under way is of a size that was never tried
    cdef double _lost                # passes that such ones took beyond what they emitted, lately
    cdef Py_ssize_t _steps
    cdef Calibrations calibrations
    cdef void choose_one(self, CandidateC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept
    cdef int choose_all(self, CandidateC* candidates, Py_ssize_t n, Py_ssize_t batch_tokens, Py_ssize_t decoding,
                        Py_ssize_t capacity) except -1
    cdef void solve(self, CandidateC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept
    cdef double net_of(self, CandidateC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept
    cdef void add_step(self, Py_ssize_t emitted, Py_ssize_t batch_tokens, double seconds) noexcept
    cdef double speed(self) noexcept
    cdef bint explores(self) noexcept
    cdef void explore(self, CandidateC* c, Py_ssize_t base, Py_ssize_t most) noexcept
    cdef bint probes(self, Py_ssize_t bare, Py_ssize_t decoding) noexcept
