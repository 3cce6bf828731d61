# Sorting of packed entries.
from ngramspec._packing cimport EntryC

cdef void sort_entries(EntryC* e, EntryC* scratch, Py_ssize_t n) noexcept nogil
cdef Py_ssize_t sum_equal(EntryC* e, Py_ssize_t n) noexcept nogil
