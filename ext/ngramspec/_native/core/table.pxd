# TableC: 32-bit hash -> item number; the caller compares keys. It grows by moving a few cells per new item.
from ngramspec._native.core.types cimport STATUS_OK, Status, ngs_rest, uint32_t, uint64_t

cdef struct HashCellC:
    uint32_t hash
    uint32_t item         # number + 1; 0 = empty, so zeroed memory is empty cells

cdef struct CellsC:
    HashCellC* cells      # open addressing, linear probes; owned
    Py_ssize_t capacity   # a power of two, 0 = none
    int shift             # hash >> shift: the home cell, so that cells come in order of their hashes

cdef struct TableC:
    CellsC now
    CellsC old            # what `now` replaces; capacity 0 = nothing
    uint64_t num_staying  # items with hashes >= 2**32 - num_staying are still in `old`, all others in `now`
    Py_ssize_t num_used   # items
    ngs_rest rest         # replaced cells that are not freed yet

cdef Status table_grow(TableC* t, Py_ssize_t num_items, Py_ssize_t coming) noexcept nogil
cdef void table_put(TableC* t, uint32_t hash, uint32_t item) noexcept nogil
cdef void table_erase(TableC* t, uint32_t hash, uint32_t item) noexcept nogil
cdef void table_empty(TableC* t, HashCellC* cell) noexcept nogil
cdef void table_clear(TableC* t) noexcept nogil
cdef const char* table_check(const TableC* t, Py_ssize_t num_items) noexcept nogil
cdef size_t table_nbytes(const TableC* t) noexcept nogil
cdef void table_free(TableC* t) noexcept nogil


cdef inline Py_ssize_t table_most(const CellsC* cells) noexcept nogil:
    """Items above which the table grows; those that join while it grows fill it to 3/4 at most."""
    return cells.capacity // 8 * 5


cdef inline Status table_reserve(TableC* t, Py_ssize_t num_items, Py_ssize_t coming) noexcept nogil:
    """Make room for num_items. `coming`, the new items of this and the next calls, paces the growth: O(coming)."""
    if t.old.capacity == 0 and t.rest.bytes == 0 and num_items <= table_most(&t.now):
        return STATUS_OK
    return table_grow(t, num_items, coming)


cdef inline const CellsC* table_side(const TableC* t, uint32_t hash) noexcept nogil:
    """The cells that hold the items of a hash."""
    return &t.old if <uint64_t>hash + t.num_staying > 0xFFFFFFFFu else &t.now


cdef inline HashCellC* table_home(const TableC* t, uint32_t hash) noexcept nogil:
    """Where the probe for a hash begins; the table is not empty."""
    cdef const CellsC* side = table_side(t, hash)
    return &side.cells[hash >> side.shift]


cdef inline HashCellC* table_find_in(const CellsC* side, uint32_t hash) noexcept nogil:
    """The first cell of a hash within `side`, or the empty one where it belongs."""
    cdef Py_ssize_t i = hash >> side.shift
    while side.cells[i].item and side.cells[i].hash != hash:
        i = (i + 1) & (side.capacity - 1)
    return &side.cells[i]


cdef inline HashCellC* table_find(const TableC* t, uint32_t hash) noexcept nogil:
    """The first cell of a hash, or the empty one where it belongs; the table is not empty."""
    return table_find_in(table_side(t, hash), hash)
