"""Counts: what each source did so far, as the driver counts it and as Python sees it."""

from libc.stdlib cimport calloc
from libc.string cimport memcpy, memset

from ngramspec.stats import SourceStats


cdef SourceCountsC* counts_make(Py_ssize_t num_sources, Py_ssize_t max_draft) except NULL:
    cdef size_t of_source = sizeof(SourceCountsC) + <size_t>max_draft * sizeof(int64_t)
    cdef SourceCountsC* counts = <SourceCountsC*>calloc(<size_t>num_sources, of_source)
    cdef int64_t* accepted_at = <int64_t*>(counts + num_sources)
    cdef Py_ssize_t i
    if counts == NULL:
        raise MemoryError("drafter: no memory for statistics")
    for i in range(num_sources):
        counts[i].accepted_at = accepted_at + i * max_draft
    return counts


cdef void counts_clear(SourceCountsC* counts, Py_ssize_t num_sources, Py_ssize_t max_draft) noexcept nogil:
    cdef int64_t* accepted_at
    cdef Py_ssize_t i
    for i in range(num_sources):
        accepted_at = counts[i].accepted_at
        memset(accepted_at, 0, <size_t>max_draft * sizeof(int64_t))
        memset(&counts[i], 0, sizeof(SourceCountsC))
        counts[i].accepted_at = accepted_at


cdef void counts_copy(SourceCountsC* counts, const SourceCountsC* source, Py_ssize_t num_sources,
                      Py_ssize_t max_draft) noexcept nogil:
    cdef int64_t* accepted_at
    cdef Py_ssize_t i
    for i in range(num_sources):
        accepted_at = counts[i].accepted_at
        memcpy(accepted_at, source[i].accepted_at, <size_t>max_draft * sizeof(int64_t))
        counts[i] = source[i]
        counts[i].accepted_at = accepted_at


cdef void counts_add(SourceCountsC* counts, const SourceCountsC* more, Py_ssize_t num_sources,
                     Py_ssize_t max_draft) noexcept nogil:
    cdef SourceCountsC* all
    cdef const SourceCountsC* own
    cdef Py_ssize_t i, k
    for i in range(num_sources):
        all, own = &counts[i], &more[i]
        all.propose_calls += own.propose_calls
        all.accept_calls += own.accept_calls
        all.num_drafts += own.num_drafts
        all.num_draft_tokens += own.num_draft_tokens
        all.propose_ns += own.propose_ns
        all.accept_ns += own.accept_ns
        all.timed_proposes += own.timed_proposes
        all.timed_accepts += own.timed_accepts
        all.num_feedbacks += own.num_feedbacks
        all.num_accepted_drafts += own.num_accepted_drafts
        for k in range(max_draft):
            all.accepted_at[k] += own.accepted_at[k]


cdef object counts_stats(const SourceCountsC* c, str name, Py_ssize_t max_draft):
    cdef Py_ssize_t i, last = 0
    cdef int64_t num_accepted_tokens = 0
    for i in range(max_draft):
        num_accepted_tokens += c.accepted_at[i]
        if c.accepted_at[i]:
            last = i + 1
    return SourceStats(
        name=name,
        begin_calls=c.begin_calls,
        propose_calls=c.propose_calls,
        accept_calls=c.accept_calls,
        num_drafts=c.num_drafts,
        num_accepted_drafts=c.num_accepted_drafts,
        num_draft_tokens=c.num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        accepted_per_position=tuple([c.accepted_at[i] for i in range(last)]),
        begin_ns=c.begin_ns,
        propose_ns=_scaled(c.propose_ns, c.propose_calls, c.timed_proposes),
        accept_ns=_scaled(c.accept_ns, c.num_feedbacks, c.timed_accepts),
    )


cdef int64_t _scaled(int64_t ns, int64_t calls, int64_t timed):
    """The time of all calls, by those that were timed."""
    return <int64_t>(<double>ns * <double>calls / <double>timed) if timed else 0
