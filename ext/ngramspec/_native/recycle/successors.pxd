# SuccessorsC: which tokens the target held likeliest after a token, or after two, in a table of fixed size.
#
# An entry is a row of words: a head, then tokens, then probabilities in 16 bits, two to a word. One thread
# writes at a time; readers take no lock: a version that is odd, or has changed, tells that what they read is
# of two states.
from ngramspec._native.core.types cimport int64_t, token_t, uint16_t, uint32_t

cdef enum:
    MOST = 16             # successors of a context at most
    WAYS = 4              # entries where a context can be
    NONE_BEFORE = -1      # the key is one token

cdef struct SuccessorsC:
    uint32_t* words       # num_sets * WAYS entries of `stride` words; zeros = empty
    Py_ssize_t num_sets
    Py_ssize_t stride     # words of an entry
    int top               # successors kept, 1..MOST
    char[64] apart        # fields below are written all the time, fields above only read
    int64_t num_entries
    int64_t num_observed
    int64_t num_evicted
    int lock              # held by the writer

# What is known of a context.
cdef struct LikelyC:
    int n                 # successors, likeliest first; 0 = nothing is known
    token_t[MOST] tokens
    uint16_t[MOST] p      # probability * 65535

# read what follows `last`, or `before` and `last`
cdef void successors_find(const SuccessorsC* s, token_t before, token_t last, LikelyC* followers) noexcept nogil
# keep what the target said, in place of what was known; takes the lock
cdef void successors_put(SuccessorsC* s, token_t before, token_t last, const LikelyC* followers) noexcept nogil

cdef class SuccessorPool:
    cdef SuccessorsC c
    cdef object __weakref__
    cdef size_t _bytes(self) noexcept
