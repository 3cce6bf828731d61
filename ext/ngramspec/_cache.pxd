# NgramCache: counts of followers that several slots, drafters and threads share.
from ngramspec._counts cimport CountsC
from ngramspec._types cimport Status, int64_t, ngs_wide_lock, token_t

# Counts that threads share. Those who read enter the lock together, those who add one at a time.
cdef struct SharedC:
    CountsC counts
    ngs_wide_lock lock
    Py_ssize_t ngram_min  # n-gram sizes that are learned
    Py_ssize_t ngram_max
    int64_t learner       # thread whose request it learned from last, 0 = none

# count tokens[start:end] as followers of the n-grams before each, a few tokens per hold of the lock; `start` goes on
# to the first that was not counted: there was no memory for it, or the lock was not free and this is not to wait
cdef Status cache_learn(SharedC* x, const token_t* tokens, Py_ssize_t* start, Py_ssize_t end,
                        bint waits) noexcept nogil

cdef class NgramCache:
    cdef SharedC c
    cdef readonly Py_ssize_t ngram_min
    cdef readonly Py_ssize_t ngram_max
    cdef readonly Py_ssize_t max_ngrams
