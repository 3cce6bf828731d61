# TreePlaceC: where a token of a tree stands.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int8_t, token_t, uint32_t
from ngramspec._native.drafter.driver cimport DriverC

cdef enum:
    MOST_BRANCHES = 31

cdef struct TreePlaceC:
    int32_t depth          # 0 = directly after the text
    uint32_t branches      # a bit per branch that the token belongs to
    int32_t own            # the branch that began with it or that it goes on with
    int32_t index          # tree_arrange: where it goes
    int32_t parent         # the same of the token that comes here
    token_t token
    bint added             # a source that takes time has drafted it, beside or after a free draft

# set the places of n tokens; return how many branches there are, -1 where they are more than MOST_BRANCHES
cdef Py_ssize_t tree_places(const int32_t* parents, Py_ssize_t n, TreePlaceC* places) noexcept nogil
# put each branch's own tokens together, those of branch 0 first; then set the places
cdef Py_ssize_t tree_arrange(token_t* tokens, int32_t* parents, Py_ssize_t n, TreePlaceC* places) noexcept nogil
# the first of a token's branches
cdef int branch_of(uint32_t branches) noexcept nogil

# Batch: the tokens of one decode, for many sequences.
# RowsC: the logits of the last decode, where the target keeps them.
# CandidateC: a token that a sampler chose from.
# Sampler: how one request chooses a token from a row of logits.

cdef class Batch(Owner):
    cdef token_t* tokens       # capacity entries each
    cdef int32_t* positions    # position of the token in its sequence
    cdef int32_t* sequences    # sequence id
    cdef uint32_t* branches    # of the sequence: a bit per branch of a tree that the token belongs to; 1 = no tree
    cdef int8_t* outputs       # 1 = its logits are wanted
    cdef Py_ssize_t len
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t num_outputs
    cdef void put(self, token_t token, Py_ssize_t position, int32_t sequence, bint output,
                  uint32_t branches) noexcept nogil
    cdef void put_draft(self, const token_t* draft, Py_ssize_t n, const TreePlaceC* places, Py_ssize_t before,
                        Py_ssize_t position, int32_t sequence) noexcept nogil

cdef struct RowsC:
    const float* data      # num_rows * vocab_size, row after row; valid until the next decode
    Py_ssize_t num_rows    # 0 = none
    Py_ssize_t vocab_size  # >= 1

cdef enum:
    MUCH_TO_READ = 1 << 19  # logits that take about 50 us to read; releasing the GIL for fewer costs more


cdef class Rows:
    cdef RowsC c
    cdef object _owner     # keeps data alive if it belongs to an array
    cdef const float* row(self, Py_ssize_t index) except NULL

# the logarithm of the sum of exp(row - top), where top is the largest logit, which is set; infinite ones are equal
cdef double log_sum_of(const float* row, Py_ssize_t n, float* top) noexcept nogil
# a logit's log-probability, by the largest one and log_sum_of
cdef double log_share(float logit, double top, double total) noexcept nogil
# write the `top` tokens with the largest logits, largest first, of equals the smaller id first; NaN and minus infinity are
# none, and all from 1e30 on are equal; return their number. `logits`: room for as many
cdef Py_ssize_t likeliest_of(const float* row, Py_ssize_t n, Py_ssize_t top, token_t* tokens, float* logits) noexcept nogil
# which place a logit has among those of a row, 1 if none is larger
cdef int32_t rank_of(const float* row, Py_ssize_t n, float logit) noexcept nogil

# A token that a sampler chose from.
cdef struct CandidateC:
    token_t token
    float probability      # after filters, penalties and temperature

# Kernels of a sampler; `state` is its own struct or handle.
cdef struct SamplerC:
    void* state
    # choose from vocab_size logits; -1 when no token is possible. The row is not changed.
    token_t (*choose)(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil
    # the chosen token is emitted: penalties, grammar and the like advance
    void (*accept)(void* state, token_t token) noexcept nogil
    # write the tokens that are chosen next whatever the logits, `limit` at most; return their number
    Py_ssize_t (*certain)(void* state, token_t* out, Py_ssize_t limit) noexcept nogil
    # write tokens that are chosen next, very likely, whatever the logits, `limit` at most; return their number. NULL: 0
    Py_ssize_t (*forced)(void* state, token_t* out, Py_ssize_t limit) noexcept nogil
    # set for each token of a draft, 1 or 0, whether it can be chosen after its parent, the one before it where
    # parents is NULL. NULL: any can
    void (*fits)(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil
    # write the token just chosen, then the likeliest that it was chosen from, `top` at most and none that is
    # impossible; return their number. To be called before accept, and before another sampler chooses.
    Py_ssize_t (*candidates)(void* state, token_t chosen, CandidateC* out, Py_ssize_t top) noexcept nogil

# the candidates where no other token was possible
cdef Py_ssize_t only_candidate(void* state, token_t chosen, CandidateC* out, Py_ssize_t top) noexcept nogil
# a token's log-probability and the likeliest candidates', as Rows.logprobs returns them
cdef tuple logprobs_of(const CandidateC* candidates, Py_ssize_t count)

# drop tokens of a slot's pending draft that the sampler cannot choose; return how many are left
cdef Py_ssize_t sampler_fit(SamplerC* sampler, DriverC* d, Py_ssize_t slot) noexcept nogil

cdef class Sampler(Owner):
    cdef SamplerC c

cdef class PromptLogprobs(Owner):
    cdef readonly Py_ssize_t size   # tokens that are told of: all of the prompt but its first
    cdef readonly Py_ssize_t top    # likeliest tokens that are kept for each
    cdef Py_ssize_t len             # of these tokens, from the first on, those that are known
    cdef float* logprobs            # per token
    cdef int32_t* ranks             # per token, from 1 on
    cdef token_t* likeliest         # `top` per token, -1 = no further one is possible
    cdef float* likely              # their log-probabilities
    cdef void add(self, const float* row, Py_ssize_t vocab_size, token_t token) noexcept nogil
