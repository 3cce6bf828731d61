"""Base of the draft sources: a struct of kernels and the Python object that keeps it alive."""

from ngramspec._native.core.types cimport STATUS_OK

cdef enum:
    COMPARED = 32         # most tokens before a match that are compared
    MAX_HISTORY = 1 << 28


cdef void claim_copy(const HistoryC* h, Py_ssize_t at, float* confidence, Py_ssize_t n) noexcept nogil:
    """Claim (k + 1) / (k + 2) for each token, k being the length of the match before it."""
    cdef Py_ssize_t alike = 0
    cdef Py_ssize_t i
    while alike < COMPARED and alike < at and h.tokens[at - 1 - alike] == h.tokens[h.len - 1 - alike]:
        alike += 1
    for i in range(n):
        confidence[i] = <float>(alike + i + 1) / <float>(alike + i + 2)


cdef Status _need_no_room(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    return STATUS_OK


cdef void _ignore_feedback(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t right, bint rejected) noexcept nogil:
    pass


cdef void _ignore_finish(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    pass


cdef class Source(Owner):
    """One way to draft tokens; pass it to a Drafter.

    Attributes:
        name: The source's name in statistics, such as "ngram-mod".
        slots: Number of slots it keeps state for.
        max_history: Longest history that it can draft from, in tokens.
    """

    def __cinit__(self, *_, **__):
        self.max_history = MAX_HISTORY
        self.c.reserve, self.c.feedback, self.c.finish = _need_no_room, _ignore_feedback, _ignore_finish

    cdef int make_lanes(self, int num_lanes) except -1:
        return 0

    @property
    def max_draft(self):
        """Return the longest draft that the source can propose, in tokens."""
        return self.c.max_draft
