# The lossless check of one draft: sample and match.
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.engine.decode cimport CandidateC, SamplerC

# the row after a token that was chosen from `row`, -1 where the draft did not guess it. Row 0 follows the text,
# row i + 1 token i of the draft. parents: NULL = no tree
cdef Py_ssize_t next_row(const token_t* draft, const int32_t* parents, Py_ssize_t draft_len, Py_ssize_t row,
                         token_t token) noexcept nogil
# write the emitted tokens; return their number, or -1 minus it when no token was possible. `parents`: NULL = no tree.
# `rows`: receives the row that each token was chosen from. `candidates`: what they were chosen from, top + 1 places
# per token; not asked for where top is -1
cdef Py_ssize_t verify_rows(const float* logits, Py_ssize_t vocab_size, const token_t* draft, const int32_t* parents,
                            Py_ssize_t draft_len, SamplerC* sampler, token_t* out, int32_t* rows,
                            CandidateC* candidates, Py_ssize_t top) noexcept nogil
