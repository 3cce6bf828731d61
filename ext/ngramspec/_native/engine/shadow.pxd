# Shadow: what drafters would have brought. ShadowRun: their drafts for one request, none of which is sent.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int64_t, token_t
from ngramspec._native.drafter.drafter cimport Drafter
from ngramspec._native.drafter.driver cimport SourceCountsC
from ngramspec._native.drafter.offer cimport AskC
from ngramspec._native.engine.decode cimport SamplerC
from ngramspec._native.engine.trace cimport DecisionTrace
from ngramspec._native.policy.auto cimport AutoPolicy


cdef class Shadow:
    cdef readonly str name
    cdef AutoPolicy policy            # learns from the passes that there would have been
    cdef readonly int64_t num_passes
    cdef readonly int64_t num_drafts
    cdef readonly int64_t num_draft_tokens
    cdef readonly int64_t num_accepted_tokens
    cdef readonly int64_t num_failures
    cdef int64_t num_emitted          # by the passes
    cdef double plain                 # what its tokens would have taken without drafts ...
    cdef double drafted               # ... and with them, in passes over one token
    cdef readonly double saved_seconds
    cdef void add(self, Py_ssize_t draft_len, Py_ssize_t accepted, Py_ssize_t emitted, Py_ssize_t bare,
                  Py_ssize_t decoding, int64_t ns) noexcept nogil


cdef class ShadowRun(Owner):
    cdef readonly Shadow shadow
    cdef object origin                # the NativeSource ...
    cdef readonly Drafter drafter     # ... its drafter ...
    cdef readonly str source          # ... and its name in the policy
    cdef Py_ssize_t slot
    cdef bint active                  # its request has begun and goes on
    cdef bint asked                   # the drafter was asked since the last pass that there would have been
    cdef SourceCountsC* counts        # in place of the drafter's own, which are those of drafts that were sent
    cdef token_t* tokens              # that came since
    cdef Py_ssize_t num_tokens
    cdef Py_ssize_t bare              # of the pass in which it was asked: tokens without drafts, and decoding slots
    cdef Py_ssize_t decoding
    cdef int64_t ns                   # that drafting took since
    cdef DecisionTrace trace          # None: nobody wants to know
    cdef int64_t request              # its number and the drafter's names, for the trace
    cdef Py_ssize_t chain
    cdef int begin(self, Py_ssize_t slot, prompt, const token_t* tokens, Py_ssize_t n) except -1
    cdef int ask(self, Py_ssize_t room, Py_ssize_t least, const AskC* place, Py_ssize_t capacity,
                 SamplerC* sampler) except -1
    cdef int follow(self, const token_t* tokens, Py_ssize_t n) except -1
    cdef int end(self) except -1
    cdef int fail(self) except -1
    cdef int commit(self, Py_ssize_t right, bint counts) except -1

cdef int shadows_take(tuple runs, Py_ssize_t slot, prompt, const token_t* tokens, Py_ssize_t n) except -1
cdef int shadows_end(tuple runs) except -1
