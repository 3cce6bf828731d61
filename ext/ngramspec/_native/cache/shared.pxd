# Counts that threads share: shards by the newest token of an n-gram, each with a lock of its own.
from ngramspec._native.cache.counts cimport CountsC
from ngramspec._native.core.types cimport Status, int64_t, token_t, uint32_t, uint64_t, uint8_t

# Those who read enter the lock together, those who add one at a time.
cdef struct ShardC:
    CountsC counts
    int lock
    char[124] apart       # from what threads write to the next shard

cdef struct SharedC:
    ShardC* shards
    int num_shards
    int shift             # of a token's hash: what is left is the number of its shard
    Py_ssize_t ngram_min  # n-gram sizes that are learned
    Py_ssize_t ngram_max

# Of all shards together; each as it was at one time.
cdef struct FiguresC:
    Py_ssize_t num_ngrams
    Py_ssize_t num_followers  # records ever handed out, free ones included
    int64_t num_adds
    size_t nbytes

cdef enum:
    MAX_SHARDS = 16
    BLOCK = 256           # what is put in the order of the shards at a time


cdef inline int shared_number(const SharedC* x, token_t newest) noexcept nogil:
    """Which shard has all n-grams that end with a token."""
    return <int>(<uint64_t>(<uint32_t>newest * <uint32_t>0x85EBCA6Bu) >> x.shift)


cdef inline ShardC* shared_shard(const SharedC* x, token_t newest) noexcept nogil:
    return &x.shards[shared_number(x, newest)]


cdef Status shared_init(SharedC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max, Py_ssize_t max_ngrams) noexcept nogil
cdef void shared_free(SharedC* x) noexcept nogil
# make room for num_adds[i] adds in shard i
cdef Status shared_reserve(SharedC* x, const Py_ssize_t* num_adds) noexcept nogil
# count tokens[start:end] as followers of the n-grams before each
cdef Status shared_learn(SharedC* x, const token_t* tokens, Py_ssize_t start, Py_ssize_t end) noexcept nogil
# the places 0..num-1 of things whose shards are given, sorted by shard and otherwise as they come; num <= BLOCK
cdef void shared_order(const uint8_t* numbers, int num, uint8_t* order) noexcept nogil
cdef FiguresC shared_figures(const SharedC* x) noexcept nogil
# first broken invariant or NULL; O(n-grams)
cdef const char* shared_check(const SharedC* x) noexcept nogil
