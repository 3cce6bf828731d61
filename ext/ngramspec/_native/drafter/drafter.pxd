# Drafter: owns the slots and sources; drafts for a slot and commits what the target emitted.
cimport cython

from ngramspec._native.core.types cimport Status, int64_t, token_t, uint8_t
from ngramspec._native.drafter.driver cimport DriverC, SlotC
from ngramspec._native.policy.auto cimport AutoPolicy, OfferC
from ngramspec._native.policy.costs cimport CalibrationC

# A request for a draft.
cdef struct AskC:
    Py_ssize_t limit         # most tokens to draft
    Py_ssize_t room          # most of them that may be sent
    const uint8_t* valid     # per token id: whether a draft may hold it; NULL = any id
    Py_ssize_t num_valid
    Py_ssize_t batch_tokens  # tokens of the pass without drafts
    Py_ssize_t decoding      # slots that share the pass
    Py_ssize_t width         # most tokens at one depth of a tree, 0 = a chain
    Py_ssize_t branches      # most branches of a tree, 0 = any number

# What a policy learns of passes: tokens emitted, and tokens in their batches.
cdef struct EmittedC:
    Py_ssize_t tokens
    Py_ssize_t batch_tokens

cdef class Drafter:
    cdef DriverC d
    cdef tuple _sources         # keeps the kernels' state alive
    cdef AutoPolicy _policy     # shortens drafts; None = they are not shortened
    cdef AutoPolicy _judge      # values drafts now: _policy, or an engine's policy
    cdef CalibrationC** _calibrations  # the judge's, one per source; NULL: it is calibrated
    cdef cython.pymutex _lock   # held around every use of d
    cdef int _threads           # most that work on a batch
    cdef int _num_lanes         # the same, by the number of slots
    cdef DriverC** _lanes       # d as each of these threads has it; entry 0 is d
    cdef int64_t _drafted       # batches that were drafted for
    cdef int64_t _followed      # batches that were followed; guarded by the GIL
    cdef int _make_lanes(self) except -1
    cdef int _make_rows(self, SlotC* s) except -1
    cdef const char* _broken(self, Py_ssize_t slot) noexcept
    cdef SlotC* _slot(self, Py_ssize_t slot) except NULL
    cdef SlotC* _active(self, Py_ssize_t slot, str call) except NULL

cdef int drafter_judge(Drafter drafter, AutoPolicy policy) except -1
cdef Py_ssize_t drafter_offer(Drafter drafter, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil
cdef Status drafter_commit(Drafter drafter, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                           Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil
