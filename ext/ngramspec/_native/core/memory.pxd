# Owner: memory that lives as long as an object. grow: an array that grows by itself.
from ngramspec._native.core.types cimport Status

cdef struct BlockC:
    BlockC* older         # the one taken before, NULL = none
    size_t num_bytes      # after this head, which is 16 bytes long, as any type may have to be aligned

cdef class Owner:
    cdef BlockC* _newest
    # `count` items of zeros, freed with the object, after its own __dealloc__
    cdef void* take(self, Py_ssize_t count, size_t item_bytes) except NULL
    # memory of `take` (NULL: none yet) made larger; what is added is zeros. The old address is not valid any more
    cdef void* enlarge(self, void* memory, Py_ssize_t count, size_t item_bytes) except NULL

# make room for `needed` items, growing by at least half; the owner frees the memory with ngs_release
cdef Status grow(void** memory, Py_ssize_t* capacity, Py_ssize_t needed, size_t item_bytes) noexcept nogil
