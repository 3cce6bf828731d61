# Kernels of the suffix source that learn from new tokens.
from ngramspec._history cimport HistoryC
from ngramspec._suffix_state cimport SuffixC, SuffixSlotC

# enter the contexts of new tokens
cdef void suffix_index(SuffixSlotC* s, const HistoryC* h) noexcept nogil
# write to the pool what was generated and it has not been given yet. When the request is over, its prompt too;
# until then what others' writing keeps out waits for the next call
cdef void suffix_give(SuffixC* c, SuffixSlotC* s, const HistoryC* h, bint over) noexcept nogil
# compare what was considered with what the target said: the history from `start` on
cdef void suffix_learn(SuffixC* c, SuffixSlotC* s, const HistoryC* h, Py_ssize_t start) noexcept nogil
