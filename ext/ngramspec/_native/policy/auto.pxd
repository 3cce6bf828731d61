# Gate: draft lengths by what was right lately; a part of AutoPolicy.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.policy.chooser cimport Chooser, OfferC
from ngramspec._native.policy.costs cimport Calibrations, PassCosts

# What one source did for one slot.
cdef struct GateLaneC:
    bint begun        # the source was asked since the slot's request began
    Py_ssize_t limit  # longest draft allowed
    Py_ssize_t rest   # steps left in which the source is not asked
    Py_ssize_t pause  # length of the next rest in steps
    double rate       # running share of drafted tokens that were accepted

cdef class _Lanes(Owner):
    cdef GateLaneC* lanes       # by slot
    cdef Py_ssize_t count
    cdef double share       # running share of accepted tokens over all slots
    cdef GateLaneC* of(self, Py_ssize_t slot) except NULL

cdef class Gate:
    cdef Py_ssize_t _max_draft
    cdef dict _sources      # name -> _Lanes
    cdef _Lanes lanes_of(self, str source)
    cdef int begin(self, Py_ssize_t slot) except -1
    cdef Py_ssize_t ask(self, Py_ssize_t slot, str source) except -1
    cdef int learn(self, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1

# AutoPolicy: draft lengths from what tokens are worth and what passes cost.

# What the slots of a pass emitted, and the tokens of the pass.
cdef struct EmittedC:
    Py_ssize_t tokens
    Py_ssize_t batch_tokens  # newest and drafted ones, without padding
    Py_ssize_t padded        # rows that are padded to their longest draft, 0 = none
    const void* slots        # those of the drafter of these rows
    Py_ssize_t own           # of batch_tokens, those of these slots
    Py_ssize_t longest       # of their drafts

# Emitted tokens of all slots and what they took, in passes over one token; earlier ones count less.
cdef struct RateC:
    double emitted
    double passes

# raise unless a pass that pads drafts has room for the rows that draft
cdef int check_padded(Py_ssize_t padded_rows, Py_ssize_t drafting) except -1
cdef int check_batch(Py_ssize_t batch_tokens, Py_ssize_t decoding) except -1

cdef class AutoPolicy:
    cdef Py_ssize_t _max_draft
    cdef Py_ssize_t _fixed           # tokens of every draft, if there are enough; -1 = it weighs them
    cdef Gate _gate                  # says how many of them are asked for, None = all
    cdef PassCosts _costs            # add() learns what a pass took
    cdef Chooser _chooser
    cdef RateC _lately               # the text that is said now
    cdef RateC _usual                # all kinds of text that come
    cdef bint teaches                # the pass under way will be learnt from; else nothing is tried out in it
    cdef bint _exploring             # the pass under way is of a size that was never tried
    cdef double _lost                # recent cost of such passes beyond what they emitted, in passes over one token
    cdef Py_ssize_t _steps
    cdef readonly bint shadow        # its drafts are judged and not sent
    cdef EmittedC emitted            # by all drafters with this policy, since one of them last drafted
    cdef Calibrations calibrations
    cdef AutoPolicy beside(self)
    cdef bint _weighs(self) noexcept nogil
    cdef Py_ssize_t longest(self, Py_ssize_t slot, str source) except -1
    cdef int note_sent(self, Py_ssize_t slot, str source, Py_ssize_t drafted, Py_ssize_t accepted) except -1
    cdef void choose_one(self, OfferC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept nogil
    cdef int reserve(self, Py_ssize_t n) except -1
    cdef void choose_all(self, OfferC* offers, Py_ssize_t n, Py_ssize_t batch_tokens, Py_ssize_t decoding,
                         Py_ssize_t capacity) noexcept nogil
    cdef void even(self, OfferC* offers, Py_ssize_t n, Py_ssize_t batch_tokens, Py_ssize_t rows) noexcept nogil
    cdef void end_pass(self) noexcept nogil
    cdef void solve(self, OfferC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept nogil
    cdef double net_of(self, OfferC* c, Py_ssize_t batch_tokens, Py_ssize_t decoding) noexcept nogil
    cdef void add_step(self, Py_ssize_t emitted, Py_ssize_t batch_tokens, double seconds) noexcept nogil
    cdef const float* least_of(self, Py_ssize_t batch_tokens, Py_ssize_t decoding, Py_ssize_t n) noexcept nogil
    cdef double speed(self) noexcept nogil
    cdef bint explores(self) noexcept nogil
    cdef void explore(self, OfferC* c, Py_ssize_t base, Py_ssize_t most) noexcept nogil
    cdef bint probes(self, Py_ssize_t bare, Py_ssize_t decoding) noexcept nogil
