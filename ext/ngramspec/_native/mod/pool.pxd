# PoolC: the fixed-size table of ngram-mod, shared by slots, drafters and threads.
from ngramspec._native.core.types cimport hash_t, int64_t, token_t, uint32_t

cdef enum:
    POOL_MAX_TOKEN = 0x3FFFFE   # 22 bits per cell hold token + 1; larger ids are never pooled

# A cell is one aligned 32-bit word, read and written whole: 0 = empty, else
#   bits 0..21 token + 1 | bits 22..29 check bits of the n-gram's hash | bits 30..31 confidence
# A race between threads can lose an entry, never tear one or miscount it.
# Figures that lie beside the cells: in a mapped file they are shared by processes too.
cdef struct PoolCountersC:
    int64_t num_used      # cells in use; a killed process may leave it a little off
    int64_t hand          # next cell the clock hand looks at
    int64_t num_replaced  # newer continuation of the same n-gram, as far as the check tells
    int64_t num_collided  # entry of another n-gram overwritten (needs check bits)
    int64_t num_aged      # cells freed by the clock hand

cdef enum:
    MAX_SHARES = 16

# What one writer has counted and the pool's counters do not hold yet. Counters that every writer changes
# would cost more than the cells: their cache line goes from core to core.
cdef struct PoolShareC:
    int64_t used          # written by its owner, read by those who ask for figures
    int64_t replaced
    int64_t collided
    int64_t room          # cells that the owner may fill before it counts them in the pool's counters
    bint kept             # from one call to the next; else pool_commit counts all of it
    char[88] apart        # from what another writer counts

cdef struct PoolC:
    uint32_t* cells
    PoolCountersC* counters
    hash_t mask           # capacity - 1; capacity is a power of two
    int check_shift       # 64 - check_bits; 64 = no check
    int64_t max_used      # cells in use above which the clock hand frees some for each new one
    uint32_t vocab_size   # tokens from it on are neither stored nor returned

cdef token_t pool_lookup(const PoolC* p, hash_t h) noexcept nogil
# how often a cell was confirmed lately, 0..3
cdef int pool_confidence(const PoolC* p, hash_t h) noexcept nogil
cdef void pool_insert(PoolC* p, hash_t h, token_t token, PoolShareC* share) noexcept nogil
# after a batch of inserts
cdef void pool_commit(PoolC* p, PoolShareC* share) noexcept nogil

cdef class HashPool:
    cdef PoolC c
    cdef readonly Py_ssize_t check_bits
    cdef readonly double max_occupancy
    cdef PoolCountersC _own       # counters of a pool that is not in a file
    cdef PoolShareC[MAX_SHARES] _shares  # one per writer that keeps one
    cdef bint[MAX_SHARES] _taken
    cdef object _cells            # buffers that the pool works in, None: its own memory
    cdef object _counters

    cdef int _take_buffers(self, object cells, object counters) except -1
    cdef PoolShareC _pending(self) noexcept nogil
    cdef PoolShareC* join(self, PoolShareC* own) noexcept
    cdef void leave(self, PoolShareC* share) noexcept
