# TableC: 32-bit hash -> item number, the caller compares keys.
from ngramspec._types cimport Status, int32_t, uint32_t

cdef struct HashCellC:
    uint32_t hash
    int32_t item          # >= 0; -1 = empty

cdef struct TableC:
    HashCellC* cells      # open addressing, linear probes; owned
    Py_ssize_t capacity   # a power of two, 0 before the first reserve
    Py_ssize_t num_used   # at most 3/4 of capacity

cdef Status table_reserve(TableC* t, Py_ssize_t num_items) noexcept nogil
cdef void table_put(TableC* t, uint32_t hash, int32_t item) noexcept nogil
cdef void table_erase(TableC* t, uint32_t hash, int32_t item) noexcept nogil
cdef void table_clear(TableC* t) noexcept nogil
