# Observation: which tokens a row of the target's logits follows, and what sources are told of it.
from ngramspec._native.core.types cimport token_t
from ngramspec._native.drafter.driver cimport DriverC, SlotC

# how many rows there can be: of the pending draft's pass, or, if `placed`, from a position of the request on
cdef Py_ssize_t observation_most(const SlotC* s, bint placed, Py_ssize_t position) noexcept nogil
# the tokens that row `row` follows: from position `position` of the request on, or, with -1, of the pending draft's
# pass: row 0 the newest token, row + 1 token `row` of the draft. False: the slot does not hold them any more
cdef bint observation_context(const DriverC* d, Py_ssize_t slot, Py_ssize_t position, Py_ssize_t row, token_t* before,
                              token_t* last) noexcept nogil
# tell all sources the target's n likeliest tokens there and their probabilities
cdef void observation_tell(DriverC* d, token_t before, token_t last, const token_t* tokens, const float* p,
                           Py_ssize_t n) noexcept nogil
# take the likeliest tokens out of rows of logits, and tell them
cdef void observation_show(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const float* rows, Py_ssize_t num_rows,
                           Py_ssize_t vocab_size) noexcept nogil
