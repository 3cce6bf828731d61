# PoolC: the fixed-size table of ngram-mod, shared by slots, drafters and threads.
from ngramspec._native.core.types cimport hash_t, int64_t, token_t, uint32_t

# A race between threads can lose an entry of a cell, never tear one or miscount it.
# Counters stored next to the cells: in a mapped file, processes share them too.
cdef struct PoolCountersC:
    int64_t num_used      # cells in use; a killed process may leave it a little off
    int64_t hand          # next cell the clock hand looks at
    int64_t num_replaced  # newer continuation of the same n-gram, as far as the check bits tell
    int64_t num_collided  # entry of another n-gram overwritten (needs check bits)
    int64_t num_aged      # cells freed by the clock hand

cdef enum:
    MAX_SHARES = 16

# What one writer has counted but not yet added to the pool's counters. Counters that every writer changes
# would cost more than the cells: their cache line moves from core to core.
cdef struct PoolShareC:
    int64_t used          # written by its owner, read by `stats`
    int64_t replaced
    int64_t collided
    int64_t room          # cells that the owner may fill before it adds them to the pool's counters
    bint lasts            # kept between calls; otherwise pool_commit adds it to the pool's counters
    char[88] apart        # padding: the next share is on other cache lines

cdef struct PoolC:
    uint32_t* cells
    PoolCountersC* counters
    hash_t mask           # capacity - 1; capacity is a power of two
    int check_shift       # 64 - check_bits; 64 = no check
    int64_t max_used      # cells in use above which the clock hand frees some for each new one
    uint32_t vocab_size   # tokens >= vocab_size are neither stored nor returned

cdef token_t pool_lookup(const PoolC* p, hash_t h) noexcept nogil
# the confidence of an n-gram's cell, 0..3
cdef int pool_confidence(const PoolC* p, hash_t h) noexcept nogil
cdef void pool_insert(PoolC* p, hash_t h, token_t token, PoolShareC* share) noexcept nogil
# after a batch of inserts
cdef void pool_commit(PoolC* p, PoolShareC* share) noexcept nogil

cdef class HashPool:
    cdef PoolC c
    cdef readonly Py_ssize_t check_bits
    cdef readonly double max_occupancy
    cdef PoolCountersC _own       # counters of a pool that is not in a file
    cdef PoolShareC[MAX_SHARES] _shares  # one per writer, for up to MAX_SHARES writers
    cdef bint[MAX_SHARES] _taken
    cdef object _cells            # buffers that the pool works in, None: its own memory
    cdef object _counters

    cdef int _take_buffers(self, object cells, object counters) except -1
    cdef PoolShareC _pending(self) noexcept nogil
    cdef PoolShareC* join(self, PoolShareC* own) noexcept
    cdef void leave(self, PoolShareC* share) noexcept
