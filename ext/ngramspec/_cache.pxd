# NgramCache: counts of followers that several slots, drafters and threads share.
from ngramspec._counts cimport CountsC
from ngramspec._types cimport token_t

cdef void cache_learn(CountsC* c, const token_t* tokens, Py_ssize_t start, Py_ssize_t end,
                      Py_ssize_t ngram_min, Py_ssize_t ngram_max) noexcept nogil

cdef class NgramCache:
    cdef CountsC c
    cdef int lock
    cdef readonly Py_ssize_t ngram_min
    cdef readonly Py_ssize_t ngram_max
    cdef readonly Py_ssize_t max_ngrams
