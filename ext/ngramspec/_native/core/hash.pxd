# A rolling hash of n-grams:
#   h(t1..tn) = sum of t_i * factor^(n-i)  mod 2^64
# so that sliding the window by one token costs two multiplications, whatever n is. With the factor LCG it is that
# of llama.cpp's ngram-mod (common/ngram-mod.cpp).
from ngramspec._native.core.types cimport STATUS_OK, Status, hash_t, ngs_rest, token_t, uint32_t, uint64_t

# An odd number, another one in each process: a factor of hashes that need not be llama.cpp's. Who knew it could
# write a prompt whose n-grams all have the same hash, or the same home in a table.
cdef uint64_t HASH_SEED

cdef extern from *:
    """
    #define NGS_LCG 6364136223846793005ULL
    """
    const uint64_t LCG "NGS_LCG"


cdef inline hash_t hash_step(hash_t h, token_t token, hash_t factor) noexcept nogil:
    return h * factor + <hash_t>token


cdef inline hash_t hash_power(Py_ssize_t n, hash_t factor) noexcept nogil:
    """factor^n: the weight that a token has when it leaves a window of n tokens."""
    cdef hash_t power = 1
    cdef Py_ssize_t _i
    for _i in range(n):
        power *= factor
    return power


cdef inline hash_t hash_slide(hash_t h, token_t leaving, token_t entering, hash_t power, hash_t factor) noexcept nogil:
    return hash_step(h, entering, factor) - <hash_t>leaving * power


cdef inline hash_t hash_tokens(const token_t* tokens, Py_ssize_t n, hash_t factor) noexcept nogil:
    cdef hash_t h = 0
    cdef Py_ssize_t i
    for i in range(n):
        h = hash_step(h, tokens[i], factor)
    return h


cdef inline uint32_t hash_fold(hash_t h) noexcept nogil:
    """Spread all 64 bits over 32, for tables whose size is a power of two."""
    h ^= h >> 32
    return <uint32_t>((h * HASH_SEED) >> 32)

# TableC: 32-bit hash -> item number; the caller compares keys. It grows by moving a few cells per new item.

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
