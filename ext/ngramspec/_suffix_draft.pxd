# Kernel of the suffix source that drafts; the pool is locked.
from ngramspec._history cimport HistoryC
from ngramspec._match cimport CandidateC
from ngramspec._suffix_state cimport SuffixC, SuffixSlotC
from ngramspec._types cimport token_t

cdef Py_ssize_t suffix_draft(SuffixC* c, SuffixSlotC* s, const HistoryC* h, CandidateC* candidates, token_t* out,
                             float* confidence, Py_ssize_t limit) noexcept nogil
