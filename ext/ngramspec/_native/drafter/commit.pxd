# Commit: what the target emitted joins a slot's history, and the policy learns what came of the drafts.
from ngramspec._native.core.types cimport Status, int32_t, int64_t, token_t
from ngramspec._native.drafter.driver cimport DriverC, LanesC, SlotC
from ngramspec._native.policy.auto cimport AutoPolicy, EmittedC

# append tokens, give feedback to the draft's source, teach the policy whose calibrations the driver has (None = there
# is none), and add to `emitted`, unless it is NULL, what it learnt. The caller has checked num_accepted against the draft
cdef Status commit_tokens(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil
# its last part: teach the policy what came of all drafts for tokens that have joined
cdef void commit_teach(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t draft_len,
                       EmittedC* emitted) noexcept nogil
# where a policy counts the pass under way; NULL = there is none
cdef EmittedC* commit_counts(AutoPolicy judge) noexcept nogil

# Observation: which tokens a row of the target's logits follows, and what sources are told of it.

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

# Follow: slots go on as the texts do that a host passes, a slot's alone or the rows of a table.

# Rows of a token table to follow.
cdef struct FollowedC:
    const LanesC* lanes
    const int32_t* slots  # -1 = none
    const int32_t* lengths
    Py_ssize_t num
    const token_t* rows
    Py_ssize_t width      # of a row
    int32_t* accepted     # set: accepted tokens of the pending draft, -1 = the row does not continue the slot
    Py_ssize_t together   # rows that a lane takes at a time
    int64_t next          # row that no lane has taken

# commit the new tokens of all rows; return the last row without room, -1 = none. `judge` as in commit_tokens
cdef Py_ssize_t follow_rows(FollowedC* f, AutoPolicy judge) noexcept nogil
# make a slot's history equal to `tokens`: commit what continues it (returns accepted tokens of the pending draft),
# otherwise begin a request (returns -1). Ids that the history does not hold yet must be in 0..vocab_size - 1 (any id
# >= 0 if that is 0); with STATUS_BAD_TOKEN it returns the position of the first one that is not
cdef Py_ssize_t follow_text(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                            Py_ssize_t vocab_size, Status* status) noexcept nogil
# the slot with the longest history that a row begins with, except those taken; -1 = none
cdef int32_t follow_find(const DriverC* d, const int32_t* slots, Py_ssize_t num_slots, const token_t* row,
                         Py_ssize_t length, const int32_t* taken, Py_ssize_t num_taken) noexcept nogil
