# Drafter: owner of the slots and sources, and one way to draft for a slot and to take up what was emitted.
cimport cython

from ngramspec._native.core.types cimport Status, token_t, uint8_t
from ngramspec._native.drafter.driver cimport DriverC, SlotC
from ngramspec._native.policy.auto cimport AutoPolicy, CandidateC
from ngramspec._native.policy.costs cimport CalibrationC

# What a draft is asked for.
cdef struct AskC:
    Py_ssize_t limit         # most tokens to draft
    Py_ssize_t room          # most of them that may be sent
    const uint8_t* valid     # per token: a draft may hold it; NULL = all may be
    Py_ssize_t num_valid
    Py_ssize_t batch_tokens  # tokens of the pass without drafts
    Py_ssize_t decoding      # slots that share it

# What passes gave: the tokens that a policy learned of, and those of the passes.
cdef struct EmittedC:
    Py_ssize_t tokens
    Py_ssize_t batch_tokens

cdef class Drafter:
    cdef DriverC d
    cdef tuple _sources         # keeps the kernels' state alive
    cdef AutoPolicy _policy     # that shortens drafts, None = they stay as they are
    cdef AutoPolicy _judge      # who values drafts now: _policy, or that of an engine
    cdef CalibrationC** _calibrations  # the judge's, one per source
    cdef cython.pymutex _lock   # held around every use of d
    cdef int _make_rows(self, SlotC* s) except -1
    cdef const char* _broken(self, Py_ssize_t slot) noexcept
    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL
    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL

cdef int drafter_judge(Drafter drafter, AutoPolicy policy) except -1
cdef Py_ssize_t drafter_offer(Drafter drafter, Py_ssize_t slot, const AskC* ask, CandidateC* best) noexcept nogil
cdef Status drafter_commit(Drafter drafter, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                           Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil
