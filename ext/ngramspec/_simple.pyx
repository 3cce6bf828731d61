"""ngram-simple: copy what followed the latest occurrence of the last size_n tokens.

Per call O(new tokens + draft). Source: llama.cpp common/ngram-map.cpp (ngram-simple), which scans
the history at each step; here an index finds the same place, loops run on past the end of the
history, position 0 counts, and min_hits is obeyed.
"""

cimport cython
from libc.stdlib cimport calloc, free

from ngramspec._history cimport HistoryC, history_continue
from ngramspec._index cimport (
    IndexC, index_check, index_extend, index_free, index_has_hits, index_init, index_latest,
    index_nbytes, index_reserve, index_rewind,
)
from ngramspec._source cimport Joined, Source, SourceC, claim_copy, ignore_feedback, ignore_finish
from ngramspec._types cimport Status, token_t

cdef struct SimpleC:
    Py_ssize_t size_m     # draft length
    Py_ssize_t min_hits   # occurrences needed
    Py_ssize_t num_slots
    IndexC* indexes       # one per slot


cdef Status _reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    return index_reserve(&(<SimpleC*>state).indexes[slot], h.len + extra, extra)


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    index_rewind(&(<SimpleC*>state).indexes[slot], h, length)


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
    index_extend(&(<SimpleC*>state).indexes[slot], h)


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit) noexcept nogil:
    cdef SimpleC* s = <SimpleC*>state
    cdef IndexC* x = &s.indexes[slot]
    cdef Py_ssize_t latest = index_latest(x, h)
    if latest < 0 or not index_has_hits(x, h, latest, s.min_hits):
        return 0
    if limit > s.size_m:
        limit = s.size_m
    history_continue(h, latest + x.n, out, limit)
    claim_copy(h, latest + x.n, confidence, limit)
    return limit


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    return index_check(&(<SimpleC*>state).indexes[slot], h)


cdef size_t _nbytes(void* state) noexcept nogil:
    cdef SimpleC* s = <SimpleC*>state
    cdef size_t total = 0
    cdef Py_ssize_t i
    for i in range(s.num_slots):
        total += sizeof(IndexC) + index_nbytes(&s.indexes[i])
    return total


@cython.final
cdef class SimpleSource(Source):
    """SimpleSource(slots, size_n, size_m, min_hits): the source behind "ngram-simple".

    Args:
        slots: Number of slots, >= 1.
        size_n: Tokens matched, >= 1.
        size_m: Longest draft, in tokens, >= 1.
        min_hits: Earlier occurrences needed before anything is drafted, >= 1.

    Raises:
        MemoryError: The state cannot be allocated.
    """

    cdef SimpleC _state

    def __cinit__(self, Py_ssize_t slots, Py_ssize_t size_n, Py_ssize_t size_m, Py_ssize_t min_hits):
        cdef Py_ssize_t i
        self.name = "ngram-simple"
        self.slots = slots
        self._state = SimpleC(size_m, min_hits, slots, <IndexC*>calloc(<size_t>slots, sizeof(IndexC)))
        if self._state.indexes == NULL:
            raise MemoryError("ngram-simple: no memory for the slots")
        for i in range(slots):
            index_init(&self._state.indexes[i], size_n)
        self.c = SourceC(&self._state, size_m, _reserve, _rewind, _extend, _propose, NULL, ignore_feedback, ignore_finish,
                         _check, _nbytes)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self._state.indexes != NULL:
            for i in range(self._state.num_slots):
                index_free(&self._state.indexes[i])
            free(self._state.indexes)
