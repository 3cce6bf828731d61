# NgramCache: counts of followers that several slots, drafters and threads share.
from ngramspec._native.cache.counts cimport SharedC

cdef class NgramCache:
    cdef SharedC c
    cdef readonly Py_ssize_t ngram_min
    cdef readonly Py_ssize_t ngram_max
    cdef readonly Py_ssize_t max_ngrams
