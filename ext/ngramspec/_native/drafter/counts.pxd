# SourceCountsC: what a source did so far.
from ngramspec._native.core.types cimport int64_t

cdef struct SourceCountsC:
    int64_t begin_calls
    int64_t propose_calls
    int64_t accept_calls  # verified drafts with tokens of the source
    int64_t num_feedbacks  # verified drafts that it made
    int64_t num_drafts
    int64_t num_draft_tokens
    int64_t begin_ns
    int64_t propose_ns    # of the timed calls only
    int64_t accept_ns     # of the timed calls only
    int64_t timed_proposes
    int64_t timed_accepts
    int64_t num_accepted_drafts
    int64_t* accepted_at  # accepted tokens by their position in the draft, 0..max_draft - 1

# counts of 0 for each source, in one piece of memory, which free() gives back
cdef SourceCountsC* counts_make(Py_ssize_t num_sources, Py_ssize_t max_draft) except NULL
cdef void counts_clear(SourceCountsC* counts, Py_ssize_t num_sources, Py_ssize_t max_draft) noexcept nogil
# make `counts` those of `source`
cdef void counts_copy(SourceCountsC* counts, const SourceCountsC* source, Py_ssize_t num_sources,
                      Py_ssize_t max_draft) noexcept nogil
# add what was counted apart, in calls other than begin
cdef void counts_add(SourceCountsC* counts, const SourceCountsC* more, Py_ssize_t num_sources,
                     Py_ssize_t max_draft) noexcept nogil
# one source's as SourceStats
cdef object counts_stats(const SourceCountsC* c, str name, Py_ssize_t max_draft)
