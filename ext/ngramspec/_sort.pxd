# Sorting of packed entries, and of the shorter form that n-grams of 1 and 2 tokens have.
from ngramspec._packing cimport EntryC
from ngramspec._types cimport uint32_t, uint64_t

# What can be sorted: entries, or single words whose top bits are as evenly spread.
ctypedef fused item_t:
    EntryC
    uint64_t

cdef enum:
    MAX_PART_BITS = 12    # of the upper word, by which items are scattered into parts

cdef int part_bits(Py_ssize_t n, size_t item_bytes) noexcept nogil
cdef void sort_parts(item_t* items, item_t* spare, const uint32_t* ends, int bits) noexcept nogil
cdef void sort_items(item_t* items, item_t* scratch, Py_ssize_t n) noexcept nogil
cdef Py_ssize_t sum_equal(EntryC* e, Py_ssize_t n) noexcept nogil
