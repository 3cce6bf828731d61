# Observation: which tokens a row of the target's logits follows, and what sources are told of it.
from ngramspec._native.core.types cimport token_t
from ngramspec._native.drafter.driver cimport DriverC, SlotC

# how many rows there can be: of the pending draft's pass, or, if `placed`, from a position of the request on
cdef Py_ssize_t observation_most(const SlotC* s, bint placed, Py_ssize_t position) noexcept nogil
# take the likeliest tokens out of rows of logits, and tell the sources. `position`: of the token of the request that row
# 0 follows; -1: rows are of the pending draft's pass. Rows whose tokens the slot does not hold any more are passed over
cdef void observation_show_logits(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const float* rows,
                                  Py_ssize_t num_rows, Py_ssize_t vocab_size) noexcept nogil
# the same of rows that hold the `width` likeliest tokens only, and the logarithms of their probabilities
cdef void observation_show_top(DriverC* d, Py_ssize_t slot, Py_ssize_t position, const token_t* tokens, const float* logs,
                               Py_ssize_t num_rows, Py_ssize_t width) noexcept nogil
# tell all sources the target's n likeliest tokens after `before` (-1: none) and `last`, and their probabilities
cdef void observation_tell(DriverC* d, token_t before, token_t last, const token_t* tokens, const float* p,
                           Py_ssize_t n) noexcept nogil
