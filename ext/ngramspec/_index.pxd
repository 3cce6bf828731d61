# IndexC: where each n-gram of a slot's history occurred, the latest first.
from ngramspec._history cimport HistoryC
from ngramspec._table cimport TableC
from ngramspec._types cimport Status, hash_t, int32_t

cdef struct IndexC:
    TableC table          # folded hash of an n-gram -> start of its latest occurrence
    int32_t* previous     # per start: the previous start with the same hash, -1 = none; owned
    Py_ssize_t previous_capacity
    Py_ssize_t num_starts  # starts 0..num_starts-1 are indexed: all that have a token after the n-gram
    Py_ssize_t num_hashed  # tokens of the history that `tail` has seen
    hash_t tail           # hash of the last n tokens seen (of all of them while fewer than n)
    hash_t power          # LCG^n
    Py_ssize_t n          # n-gram size, >= 1

cdef void index_init(IndexC* x, Py_ssize_t n) noexcept nogil
cdef Status index_reserve(IndexC* x, Py_ssize_t num_tokens, Py_ssize_t extra) noexcept nogil
cdef void index_extend(IndexC* x, const HistoryC* h) noexcept nogil
cdef void index_rewind(IndexC* x, const HistoryC* h, Py_ssize_t length) noexcept nogil
cdef Py_ssize_t index_latest(const IndexC* x, const HistoryC* h) noexcept nogil
cdef Py_ssize_t index_previous(const IndexC* x, const HistoryC* h, Py_ssize_t start) noexcept nogil
cdef bint index_has_hits(const IndexC* x, const HistoryC* h, Py_ssize_t latest, Py_ssize_t min_hits) noexcept nogil
cdef const char* index_check(const IndexC* x, const HistoryC* h) noexcept nogil
cdef size_t index_nbytes(const IndexC* x) noexcept nogil
cdef void index_free(IndexC* x) noexcept nogil
