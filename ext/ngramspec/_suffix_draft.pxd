# Kernels of the suffix source that draft.
from ngramspec._history cimport HistoryC
from ngramspec._match cimport CandidateC
from ngramspec._suffix_state cimport RecordC, SuffixC, SuffixSlotC
from ngramspec._types cimport token_t

cdef Py_ssize_t suffix_draft(SuffixC* c, SuffixSlotC* s, const HistoryC* h, CandidateC* candidates, token_t* out,
                             float* confidence, Py_ssize_t limit) noexcept nogil
# Let n candidates vote on what comes after `position` drafted tokens, of which the one of index `after` is the
# last, and add a record; NULL when they say nothing. `before` points behind the text so far, its last two
# tokens being there.
cdef RecordC* suffix_consider(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, CandidateC* candidates, int n,
                              const token_t* before, int position, int after) noexcept nogil
