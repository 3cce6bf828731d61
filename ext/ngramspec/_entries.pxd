# Counts to and from packed entries.
from ngramspec._counts cimport CountsC

cdef object entries_of_counts(CountsC* c, int* lock, Py_ssize_t size)
cdef int add_entries(CountsC* c, int* lock, object entries, Py_ssize_t size) except -1
