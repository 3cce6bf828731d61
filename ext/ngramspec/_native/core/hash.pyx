"""The seed of hashes, and an open-addressing table from a 32-bit hash to an item number; deletion leaves no tombstones.

A table grows without a pause: it allocates at least twice the cells, and each new item moves a few of the
old ones, in the order of their hashes, so a hash tells where its items are. Whole runs move, so that
no probe among the rest ends too early; moved cells are not cleared, probes pass over them. The old
memory is freed in pieces.
"""

from os import urandom

from libc.string cimport memset

from ngramspec._native.core.types cimport (
    STATUS_NO_MEMORY, STATUS_OK, ngs_release, ngs_release_later, ngs_release_rest, ngs_release_some, ngs_take,
)

cdef enum:
    FIRST = 64            # cells of the smallest table
    FIRST_SHIFT = 26      # 32 - log2(FIRST)
    PACE = 8              # old cells moved per new item: 1/8 as many items join until all have moved

HASH_SEED = int.from_bytes(urandom(8), "little") | 1


cdef Status _replace(TableC* t, Py_ssize_t num_items, bint at_once) noexcept nogil:
    """Replace `now` by larger cells."""
    cdef CellsC cells
    cells.capacity, cells.shift = FIRST, FIRST_SHIFT
    while cells.capacity <= t.now.capacity or num_items > table_most(&cells):
        cells.capacity <<= 1
        cells.shift -= 1
    if cells.shift < 0:
        return STATUS_NO_MEMORY
    cells.cells = <HashCellC*>ngs_take(<size_t>cells.capacity * sizeof(HashCellC), at_once)
    if cells.cells == NULL:
        return STATUS_NO_MEMORY
    t.old = t.now
    t.now = cells
    t.num_staying = <uint64_t>t.old.capacity << t.old.shift
    return STATUS_OK


cdef void _put(CellsC* side, HashCellC cell) noexcept nogil:
    cdef Py_ssize_t i = cell.hash >> side.shift
    while side.cells[i].item:
        i = (i + 1) & (side.capacity - 1)
    side.cells[i] = cell


cdef void _move(TableC* t, Py_ssize_t num_cells) noexcept nogil:
    """Move the items of the next num_cells old cells, and of the rest of the last run."""
    cdef CellsC* old = &t.old
    cdef Py_ssize_t i = old.capacity - <Py_ssize_t>(t.num_staying >> old.shift)
    cdef Py_ssize_t end = i + num_cells
    while i < old.capacity and (i < end or old.cells[i].item):
        # An item before its home has wrapped around: it moves with the last cells.
        if old.cells[i].item and old.cells[i].hash >> old.shift <= i:
            _put(&t.now, old.cells[i])
        i += 1
    t.num_staying = <uint64_t>(old.capacity - i) << old.shift
    if i < old.capacity:
        return
    i = 0
    while old.cells[i].item:
        if old.cells[i].hash >> old.shift > i:
            _put(&t.now, old.cells[i])
        i += 1
    ngs_release_later(&t.rest, old.cells, <size_t>old.capacity * sizeof(HashCellC))
    old.capacity = 0


cdef Status table_grow(TableC* t, Py_ssize_t num_items, Py_ssize_t coming) noexcept nogil:
    cdef Py_ssize_t step = (coming if coming > 0 else 1) * PACE
    ngs_release_some(&t.rest)
    while True:
        if t.old.capacity:
            _move(t, step)
        if t.old.capacity and num_items > table_most(&t.now):
            _move(t, t.old.capacity)
        if t.now.capacity and num_items <= table_most(&t.now):
            return STATUS_OK
        if _replace(t, num_items, step >= t.now.capacity) != STATUS_OK:
            return STATUS_NO_MEMORY


cdef void table_put(TableC* t, uint32_t hash, uint32_t item) noexcept nogil:
    _put(<CellsC*>table_side(t, hash), HashCellC(hash, item + 1))
    t.num_used += 1


cdef void table_erase(TableC* t, uint32_t hash, uint32_t item) noexcept nogil:
    """Remove an item that is in the table."""
    cdef const CellsC* side = table_side(t, hash)
    cdef Py_ssize_t i = hash >> side.shift
    while side.cells[i].item != item + 1 or side.cells[i].hash != hash:
        i = (i + 1) & (side.capacity - 1)
    table_empty(t, &side.cells[i])


cdef void table_empty(TableC* t, HashCellC* cell) noexcept nogil:
    """Empty a cell that table_find returned and move later cells of its run back, so that no probe ends too early."""
    cdef const CellsC* side = table_side(t, cell.hash)
    cdef Py_ssize_t mask = side.capacity - 1
    cdef Py_ssize_t i = cell - side.cells
    cdef Py_ssize_t j = i
    cdef Py_ssize_t home
    t.num_used -= 1
    while True:
        side.cells[i].item = 0
        while True:
            j = (j + 1) & mask
            if side.cells[j].item == 0:
                return
            home = side.cells[j].hash >> side.shift
            if ((j - home) & mask) >= ((j - i) & mask):
                break
        side.cells[i] = side.cells[j]
        i = j


cdef void table_clear(TableC* t) noexcept nogil:
    """Empty the table, keep its memory."""
    if t.old.capacity:
        ngs_release_later(&t.rest, t.old.cells, <size_t>t.old.capacity * sizeof(HashCellC))
        t.old.capacity = 0
        t.num_staying = 0
    if t.num_used:
        memset(t.now.cells, 0, <size_t>t.now.capacity * sizeof(HashCellC))
        t.num_used = 0


cdef Py_ssize_t _num_found(const TableC* t, const CellsC* side, Py_ssize_t num_items) noexcept nogil:
    """The number of items of one side; -1 when a probe misses one or its number is too large."""
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i, at
    for i in range(side.capacity):
        if side.cells[i].item == 0 or table_side(t, side.cells[i].hash) != side:
            continue
        at = side.cells[i].hash >> side.shift
        while at != i and side.cells[at].item:
            at = (at + 1) & (side.capacity - 1)
        if at != i or <Py_ssize_t>side.cells[i].item > num_items:
            return -1
        count += 1
    return count


cdef const char* table_check(const TableC* t, Py_ssize_t num_items) noexcept nogil:
    """The first broken invariant, NULL when all hold; items are below num_items. O(capacity)."""
    cdef Py_ssize_t now = _num_found(t, &t.now, num_items)
    cdef Py_ssize_t old = _num_found(t, &t.old, num_items)
    if now < 0 or old < 0:
        return "table: an item cannot be found or its number is too large"
    if now + old != t.num_used:
        return "table: number of items is wrong"
    if 4 * t.num_used > 3 * t.now.capacity:
        return "table: more items than there is room for"
    if (t.num_staying == 0) != (t.old.capacity == 0):
        return "table: num_staying does not match the old cells"
    return NULL


cdef size_t table_nbytes(const TableC* t) noexcept nogil:
    return <size_t>(t.now.capacity + t.old.capacity) * sizeof(HashCellC) + t.rest.bytes


cdef void table_free(TableC* t) noexcept nogil:
    ngs_release(t.now.cells, <size_t>t.now.capacity * sizeof(HashCellC))
    if t.old.capacity:
        ngs_release(t.old.cells, <size_t>t.old.capacity * sizeof(HashCellC))
    ngs_release_rest(&t.rest)
    memset(t, 0, sizeof(TableC))
