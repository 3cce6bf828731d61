"""Base of the draft sources: a struct of kernels and the Python object that keeps it alive."""


cdef void ignore_feedback(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t right, bint rejected) noexcept nogil:
    pass


cdef class Source:
    """One way to guess tokens, to be given to a Drafter.

    Attributes:
        name: The source's name in statistics, such as "ngram-mod".
        slots: Number of slots it keeps state for.
    """

    @property
    def max_draft(self):
        """Return the longest draft that the source can propose, in tokens."""
        return self.c.max_draft
