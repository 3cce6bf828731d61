# Counts to and from packed entries.
from ngramspec._shared cimport SharedC

cdef object entries_of_counts(SharedC* x, Py_ssize_t size)
cdef int add_entries(SharedC* x, object entries, Py_ssize_t size) except -1
