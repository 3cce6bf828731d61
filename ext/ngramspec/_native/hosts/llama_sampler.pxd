# ChainSampler: llama.cpp's samplers, called through the addresses of its functions.
from libcpp cimport bool as cbool

from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int64_t, token_t, uint8_t, uint64_t
from ngramspec._native.engine.decode cimport Sampler
from ngramspec._native.grammar.constraint cimport Constraint, ConstraintC

cdef extern from "ngs_candidates.h" nogil:
    enum:
        NGS_LANES
    ctypedef struct ngs_candidate:
        int32_t id
        float logit
        float p
    ctypedef struct ngs_candidates:
        ngs_candidate* data
        size_t size
        int64_t selected
        cbool sorted
    ctypedef void (*ngs_apply_fn)(void* sampler, ngs_candidates* candidates) noexcept
    ctypedef void (*ngs_accept_fn)(void* sampler, int32_t token) noexcept
    cbool ngs_apply(ngs_apply_fn apply, void* sampler, ngs_candidates* candidates)
    cbool ngs_accept(ngs_accept_fn accept, void* sampler, int32_t token)
    void ngs_sort_likeliest(ngs_candidates* candidates, size_t top)
    void ngs_fill(ngs_candidate* out, const float* row, Py_ssize_t n)
    void ngs_mask_row(float* out, const float* row, const uint64_t* mask, Py_ssize_t n)
    Py_ssize_t ngs_prefilter(ngs_candidate* out, const float* row, Py_ssize_t n, Py_ssize_t k, float* heap,
                             const uint8_t* counted, const uint8_t* marks)

cdef class Candidates(Owner):
    cdef ngs_candidate* data       # vocab_size entries
    cdef float* allowed            # vocab_size entries: a row as a grammar leaves it
    cdef readonly Py_ssize_t vocab_size
    cdef readonly bint closed      # llama.cpp's vocabulary is freed: choose nothing more

# State of a ChainSampler.
cdef struct ChainC:
    ngs_apply_fn apply
    ngs_accept_fn accept_call
    void* chain
    ConstraintC* grammar            # NULL = none
    ngs_candidate* data            # of the shared Candidates
    float* allowed                 # the same
    ngs_candidates left            # what the last choice was made from, in data until another one is made
    const bint* closed             # of the shared Candidates
    Py_ssize_t keep                # the chain needs the `keep` largest logits only; 0 = all
    Py_ssize_t lookback            # accepted tokens that change logits; 0 = none
    float* heap                    # keep entries
    uint8_t* counted               # per token: its logit may change in the chain; NULL = none does
    uint8_t* marks                 # per NGS_LANES tokens: one of them is counted
    Py_ssize_t vocab_size
    bint greedy                    # the chain takes the likeliest, and sets no probabilities
    bint forbidden                 # a token was accepted that the grammar forbids: choose nothing more

cdef class ChainSampler(Sampler):
    cdef ChainC chain
    cdef Candidates candidates     # keeps data alive
    cdef Constraint grammar
    cdef object owner              # frees the chain
    cdef int prepare(self, bint counts, biased) except -1
