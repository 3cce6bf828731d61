"""Open-addressing table from a 32-bit hash to an item number; deletion leaves no tombstones."""

from libc.stdlib cimport free
from libc.string cimport memset

from ngramspec._types cimport STATUS_NO_MEMORY, STATUS_OK, ngs_alloc


cdef Status table_reserve(TableC* t, Py_ssize_t num_items) noexcept nogil:
    """Make room so that num_items cells can be in use, 3/4 of the table at most."""
    cdef TableC grown
    cdef Py_ssize_t i
    cdef Py_ssize_t capacity = t.capacity if t.capacity > 0 else 64
    while num_items > capacity - (capacity >> 2):
        capacity <<= 1
    if capacity == t.capacity:
        return STATUS_OK
    grown.cells = <HashCellC*>ngs_alloc(<size_t>capacity * sizeof(HashCellC))
    if grown.cells == NULL:
        return STATUS_NO_MEMORY
    memset(grown.cells, 0xFF, <size_t>capacity * sizeof(HashCellC))
    grown.capacity = capacity
    grown.num_used = 0
    for i in range(t.capacity):
        if t.cells[i].item >= 0:
            table_put(&grown, t.cells[i].hash, t.cells[i].item)
    free(t.cells)
    t[0] = grown
    return STATUS_OK


cdef void table_put(TableC* t, uint32_t hash, int32_t item) noexcept nogil:
    cdef Py_ssize_t mask = t.capacity - 1
    cdef Py_ssize_t i = <Py_ssize_t>hash & mask
    while t.cells[i].item >= 0:
        i = (i + 1) & mask
    t.cells[i].hash = hash
    t.cells[i].item = item
    t.num_used += 1


cdef void table_erase(TableC* t, uint32_t hash, int32_t item) noexcept nogil:
    """Remove an item that is in the table; later cells of its run move back."""
    cdef Py_ssize_t mask = t.capacity - 1
    cdef Py_ssize_t i = <Py_ssize_t>hash & mask
    cdef Py_ssize_t j
    while t.cells[i].item != item:
        i = (i + 1) & mask
    t.num_used -= 1
    j = i
    while True:
        t.cells[i].item = -1
        while True:
            j = (j + 1) & mask
            if t.cells[j].item < 0:
                return
            if ((j - <Py_ssize_t>t.cells[j].hash) & mask) >= ((j - i) & mask):
                break
        t.cells[i] = t.cells[j]
        i = j


cdef void table_clear(TableC* t) noexcept nogil:
    """Empty the table, keep its memory."""
    if t.num_used:
        memset(t.cells, 0xFF, <size_t>t.capacity * sizeof(HashCellC))
        t.num_used = 0
