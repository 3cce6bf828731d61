# Follow: slots go on as the texts do that a host passes, a slot's alone or the rows of a table.
from ngramspec._native.core.types cimport Status, int32_t, int64_t, token_t
from ngramspec._native.drafter.driver cimport DriverC
from ngramspec._native.drafter.lanes cimport LanesC
from ngramspec._native.policy.auto cimport AutoPolicy

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
