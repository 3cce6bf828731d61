# Kernels of the suffix source that learn from new tokens.
from ngramspec._history cimport HistoryC
from ngramspec._suffix_state cimport SuffixC, SuffixSlotC

# enter the contexts of new tokens
cdef void suffix_index(SuffixSlotC* s, const HistoryC* h) noexcept nogil
# write to the pool what it has not been given yet; the prompt when the request is over
cdef void suffix_give(SuffixC* c, SuffixSlotC* s, const HistoryC* h, bint over) noexcept nogil
cdef void suffix_end_stream(SuffixC* c, SuffixSlotC* s) noexcept nogil
# compare what was considered with what the target said: the history from `start` on
cdef void suffix_learn(SuffixC* c, SuffixSlotC* s, const HistoryC* h, Py_ssize_t start) noexcept nogil
