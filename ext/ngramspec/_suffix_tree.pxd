# Kernel of the suffix source that drafts trees.
from ngramspec._history cimport HistoryC
from ngramspec._suffix_state cimport SuffixC, SuffixSlotC
from ngramspec._types cimport int32_t, token_t

cdef Py_ssize_t suffix_tree(SuffixC* c, SuffixSlotC* s, const HistoryC* h, token_t* out, int32_t* parents,
                            float* confidence, Py_ssize_t limit, Py_ssize_t width) noexcept nogil
