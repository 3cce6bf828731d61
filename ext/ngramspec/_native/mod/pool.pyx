"""HashPool: n-gram hash -> the token that followed, in a fixed amount of memory.

Same hash and same cell index as llama.cpp's ngram-mod (common/ngram-mod.cpp). Differs: check bits
against false hits, a confidence per cell, and a clock hand that frees the least confirmed cell
for a new one instead of clearing the table.
"""

cimport cython
from libc.stdlib cimport free
from libc.string cimport memset

from ngramspec._native.core.arguments cimport token_view
from ngramspec._native.core.hash cimport LCG, hash_tokens
from ngramspec._native.core.types cimport (
    int32_t, ngs_add64, ngs_alloc, ngs_load32, ngs_load64, ngs_store64, ngs_swap32_if, ngs_swap64_if,
)
from ngramspec._native.mod.cell cimport CHECK_POSITION, CONFIDENCE_ONE, MAX_CONFIDENCE, POOL_MAX_TOKEN, TOKEN_MASK

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    NUM_COUNTERS = 5
    MOST_STEPS = 1024     # cells that the clock hand passes per new entry: 64 lines of memory
    MOST_FREED = 2        # cells that it frees per new entry: two, to catch up after finding none
    MOST_KEPT = 32        # filled cells that a writer may leave uncounted
    FAR = 2 * MOST_KEPT * MAX_SHARES  # while the pool is at least this far from full


cdef inline uint32_t _check_of(const PoolC* p, hash_t h) noexcept nogil:
    return <uint32_t>(h >> p.check_shift) << CHECK_POSITION if p.check_shift < 64 else 0


cdef inline uint32_t _cell_of(const PoolC* p, hash_t h, token_t token) noexcept nogil:
    return _check_of(p, h) | <uint32_t>(token + 1)


cdef token_t pool_lookup(const PoolC* p, hash_t h) noexcept nogil:
    """The token that followed the n-gram last; -1 = unknown."""
    cdef uint32_t cell = ngs_load32(&p.cells[h & p.mask])
    # 0, an empty cell, wraps around and is not below the vocabulary's size either.
    if (cell & TOKEN_MASK) - 1 >= p.vocab_size or ((cell ^ _check_of(p, h)) & <uint32_t>(0xFF << CHECK_POSITION)) != 0:
        return -1
    return <token_t>(cell & TOKEN_MASK) - 1


cdef int pool_confidence(const PoolC* p, hash_t h) noexcept nogil:
    return <int>(ngs_load32(&p.cells[h & p.mask]) // CONFIDENCE_ONE)


cdef inline bint _impossible(const PoolC* p, int64_t used) noexcept nogil:
    """Whether this cannot be the number of cells in use, so that the file is damaged.

    It can be slightly off: a cell can be freed before the writer that filled it has counted it.
    """
    return used < -MOST_STEPS or used > <int64_t>p.mask + MOST_STEPS


cdef void _make_room(PoolC* p, hash_t spare, PoolShareC* share) noexcept nogil:
    """Count what was filled, and move the clock hand if too many cells are in use.

    The hand lowers the confidence of each cell that it passes and empties cells at 0.

    A file can hold any counters: an impossible number counts as just full, and the hand is masked.
    """
    cdef int64_t used = ngs_load64(&p.counters.num_used)
    cdef int64_t hand
    cdef int _step
    cdef int freed = 0
    cdef uint32_t cell
    if _impossible(p, used):
        ngs_swap64_if(&p.counters.num_used, used, p.max_used)
        used = p.max_used
    used += share.used
    if share.lasts:
        share.room = MOST_KEPT if used + FAR <= p.max_used else 0
    elif used <= p.max_used:
        return
    ngs_add64(&p.counters.num_used, share.used)
    ngs_store64(&share.used, 0)
    if used <= p.max_used:
        return
    hand = ngs_load64(&p.counters.hand) & <int64_t>p.mask
    for _step in range(MOST_STEPS):
        cell = ngs_load32(&p.cells[hand])
        if cell >= CONFIDENCE_ONE:
            ngs_swap32_if(&p.cells[hand], cell, cell - CONFIDENCE_ONE)
        elif cell != 0 and <hash_t>hand != spare and ngs_swap32_if(&p.cells[hand], cell, 0):
            ngs_add64(&p.counters.num_used, -1)
            ngs_add64(&p.counters.num_aged, 1)
            freed += 1
        hand = (hand + 1) & <int64_t>p.mask
        if freed == MOST_FREED or used - freed <= p.max_used:
            break
    ngs_store64(&p.counters.hand, hand)


cdef void pool_insert(PoolC* p, hash_t h, token_t token, PoolShareC* share) noexcept nogil:
    """Record that `token` followed the n-gram; the newest continuation wins.

    Cells change by compare-and-swap only, so exactly one thread counts each cell filled or freed.
    If another thread writes first, its entry stays: both are equally new.
    """
    cdef uint32_t* cell = &p.cells[h & p.mask]
    cdef uint32_t old = ngs_load32(cell)
    cdef uint32_t new
    if <uint32_t>token >= p.vocab_size:
        return
    new = _cell_of(p, h, token)
    if (old & ~(<uint32_t>MAX_CONFIDENCE * CONFIDENCE_ONE)) == new:
        if old < <uint32_t>MAX_CONFIDENCE * CONFIDENCE_ONE:
            ngs_swap32_if(cell, old, old + CONFIDENCE_ONE)
        return
    if not ngs_swap32_if(cell, old, new):
        return
    if old == 0:
        ngs_store64(&share.used, share.used + 1)
        if share.used > share.room:
            _make_room(p, h & p.mask, share)
    elif ((old ^ new) & <uint32_t>(0xFF << CHECK_POSITION)) != 0:
        ngs_store64(&share.collided, share.collided + 1)
    else:
        ngs_store64(&share.replaced, share.replaced + 1)


cdef void _count(PoolC* p, PoolShareC* share) noexcept nogil:
    """Move a writer's counts to the pool's counters."""
    if share.used:
        ngs_add64(&p.counters.num_used, share.used)
    if share.collided:
        ngs_add64(&p.counters.num_collided, share.collided)
    if share.replaced:
        ngs_add64(&p.counters.num_replaced, share.replaced)
    ngs_store64(&share.used, 0)
    ngs_store64(&share.collided, 0)
    ngs_store64(&share.replaced, 0)


cdef void pool_commit(PoolC* p, PoolShareC* share) noexcept nogil:
    if not share.lasts:
        _count(p, share)


@cython.final
@cython.no_gc_clear  # __dealloc__ must still see whether the pool owns its cells
cdef class HashPool:
    """HashPool(capacity=4194304, check_bits=8, max_occupancy=0.5, vocab_size=4194303, cells=None, counters=None):
    what followed each n-gram, shared.

    One pool can serve all slots of a drafter, several drafters, threads and, in a mapped file
    (`ngramspec.open_pool`), processes at once. Memory is fixed: 4 bytes per cell. The n-gram itself
    is not stored, so a lookup can return another n-gram's token with probability
    occupancy / 2**check_bits.

    Args:
        capacity: Number of cells, a power of two, 1024..2**31. 4194304 makes cell numbers equal
            to llama.cpp's.
        check_bits: Bits of the n-gram's hash kept in the cell against false hits, 0..8.
        max_occupancy: Share of cells in use above which a new entry makes a clock hand pass up to
            1024 cells and free up to 2 unconfirmed ones, 0 < max_occupancy <= 0.95.
        vocab_size: Token ids >= vocab_size are neither stored nor returned, 1..4194303.
        cells: Memory to work in, such as a mapped file: writable uint32, shape (capacity,). Kept.
        counters: Memory for the counters, only with `cells`: writable int64, shape (5,).

    Raises:
        InputError: A value is out of its bounds, or a buffer does not fit.
        MemoryError: The table cannot be allocated.

    Thread-safety: all methods, from any thread; entries are single words, so concurrent use can
    lose an entry, never corrupt one.
    """

    def __cinit__(self, capacity=1 << 22, check_bits=8, max_occupancy=0.5, vocab_size=POOL_MAX_TOKEN + 1,
                  cells=None, counters=None):
        if not isinstance(capacity, int) or capacity < 1024 or capacity > 1 << 31 or capacity & (capacity - 1):
            raise InputError(f"capacity must be a power of two in 1024..{1 << 31} cells, got {capacity!r}")
        if not isinstance(check_bits, int) or not 0 <= check_bits <= 8:
            raise InputError(f"check_bits must be an integer in 0..8, got {check_bits!r}")
        if not isinstance(max_occupancy, (int, float)) or not 0.0 < max_occupancy <= 0.95:
            raise InputError(f"max_occupancy must be above 0 and at most 0.95, got {max_occupancy!r}")
        if not isinstance(vocab_size, int) or not 1 <= vocab_size <= POOL_MAX_TOKEN + 1:
            raise InputError(f"vocab_size must be in 1..{POOL_MAX_TOKEN + 1}, got {vocab_size!r}")
        self.check_bits = check_bits
        self.max_occupancy = max_occupancy
        self.c.mask = <hash_t>capacity - 1
        self.c.check_shift = 64 - <int>check_bits
        self.c.max_used = <int64_t>(<double>capacity * <double>max_occupancy)
        self.c.vocab_size = vocab_size
        self.c.counters = &self._own
        if cells is not None:
            self._take_buffers(cells, counters)
            return
        self.c.cells = <uint32_t*>ngs_alloc(<size_t>capacity * sizeof(uint32_t))
        if self.c.cells == NULL:
            raise MemoryError(f"no memory for a pool of {capacity} cells ({4 * capacity} bytes)")
        memset(self.c.cells, 0, self.nbytes)

    cdef int _take_buffers(self, object cells, object counters) except -1:
        cdef uint32_t[::1] cell_view
        cdef int64_t[::1] counter_view
        try:
            cell_view, counter_view = cells, counters
        except (ValueError, TypeError, BufferError):
            raise InputError("cells and counters must be writable arrays of uint32 and int64") from None
        if cell_view.shape[0] != self.capacity or counter_view.shape[0] != NUM_COUNTERS:
            raise InputError(f"expected {self.capacity} cells and {NUM_COUNTERS} counters, "
                             f"got {cell_view.shape[0]} and {counter_view.shape[0]}")
        self._cells, self._counters = cell_view, counter_view
        self.c.cells = &cell_view[0]
        self.c.counters = <PoolCountersC*>&counter_view[0]
        return 0

    def __dealloc__(self):
        if self._cells is None:
            free(self.c.cells)

    cdef PoolShareC* join(self, PoolShareC* own) noexcept:
        """Return where a writer counts: a share of the pool until it leaves, or `own`.

        In a file, other processes must see the counts, so it is always `own`.
        """
        cdef int i
        memset(own, 0, sizeof(PoolShareC))
        for i in range(0 if self.in_file else MAX_SHARES):
            if not self._taken[i]:
                self._taken[i] = True
                self._shares[i].lasts = True
                return &self._shares[i]
        return own

    cdef void leave(self, PoolShareC* share) noexcept:
        """Give back what `join` returned."""
        cdef int i
        if share == NULL:
            return
        _count(&self.c, share)
        for i in range(MAX_SHARES):
            if share == &self._shares[i]:
                share.room = 0
                self._taken[i] = False

    cdef PoolShareC _pending(self) noexcept nogil:
        """Return the sum of what writers have not added to the counters yet."""
        cdef PoolShareC total
        cdef int i
        memset(&total, 0, sizeof(total))
        for i in range(MAX_SHARES):
            total.used += ngs_load64(&self._shares[i].used)
            total.replaced += ngs_load64(&self._shares[i].replaced)
            total.collided += ngs_load64(&self._shares[i].collided)
        return total

    @property
    def capacity(self):
        """Return the number of cells."""
        return <Py_ssize_t>self.c.mask + 1

    @property
    def num_used(self):
        """Return the number of cells in use; inserts under way in other threads may be missing."""
        return ngs_load64(&self.c.counters.num_used) + self._pending().used

    @property
    def nbytes(self):
        """Return the size of the table in bytes."""
        return self.capacity * sizeof(uint32_t)

    def index_of(self, token_ids):
        """Return the cell number of an n-gram.

        Args:
            token_ids: The n-gram, oldest first. int32, shape (n,), n >= 1.

        Raises:
            InputError: token_ids is not a 1-D int32 array, empty, or has negative ids.
        """
        return <Py_ssize_t>(_hash_of(token_ids) & self.c.mask)

    def lookup(self, token_ids):
        """Return the token that followed an n-gram last, -1 when none is known. Arguments as index_of."""
        return pool_lookup(&self.c, _hash_of(token_ids))

    def insert(self, token_ids, Py_ssize_t token):
        """Record that `token` followed an n-gram.

        Args:
            token_ids: The n-gram, oldest first. int32, shape (n,), n >= 1.
            token: The token after it, 0..vocab_size - 1.

        Raises:
            InputError: token_ids as in index_of; token out of its bounds.
        """
        cdef PoolShareC share
        memset(&share, 0, sizeof(share))
        if not 0 <= token < <Py_ssize_t>self.c.vocab_size:
            raise InputError(f"token must be in 0..{self.c.vocab_size - 1}, got {token}")
        pool_insert(&self.c, _hash_of(token_ids), <token_t>token, &share)
        pool_commit(&self.c, &share)

    @property
    def vocab_size(self):
        """Return the bound that every token id is below."""
        return self.c.vocab_size

    @property
    def in_file(self):
        """Return whether the pool works in memory that it was given, such as a mapped file."""
        return self._cells is not None

    def recount(self):
        """Recount the cells in use, such as after a process that shared them was killed. O(capacity).

        Cells with an impossible entry are emptied. If other writers change the number meanwhile, it
        stays as it is, unless it is impossible. Threads: releases the GIL.
        """
        cdef Py_ssize_t i
        cdef int64_t used = 0
        cdef int64_t before = ngs_load64(&self.c.counters.num_used)
        cdef uint32_t cell
        with nogil:
            for i in range(<Py_ssize_t>self.c.mask + 1):
                cell = ngs_load32(&self.c.cells[i])
                if cell != 0 and (cell & TOKEN_MASK) - 1 >= self.c.vocab_size:
                    ngs_swap32_if(&self.c.cells[i], cell, 0)
                elif cell != 0:
                    used += 1
            used -= self._pending().used
            if not ngs_swap64_if(&self.c.counters.num_used, before, used):
                before = ngs_load64(&self.c.counters.num_used)
                if _impossible(&self.c, before):
                    ngs_swap64_if(&self.c.counters.num_used, before, used)

    def entries(self):
        """Return a copy of the table: int32, shape (capacity,), the token of each cell or -1."""
        cells = np.empty(self.capacity, dtype=np.int32)
        cdef int32_t[::1] view = cells
        cdef Py_ssize_t i
        with nogil:
            for i in range(view.shape[0]):
                view[i] = <int32_t>(ngs_load32(&self.c.cells[i]) & TOKEN_MASK) - 1
        return cells

    def clear(self):
        """Empty the pool. Entries that other threads insert meanwhile may be lost or stay."""
        cdef Py_ssize_t i
        cdef int64_t freed = 0
        cdef uint32_t cell
        with nogil:
            for i in range(<Py_ssize_t>self.c.mask + 1):
                cell = ngs_load32(&self.c.cells[i])
                freed += cell != 0 and ngs_swap32_if(&self.c.cells[i], cell, 0)
            ngs_add64(&self.c.counters.num_used, -freed)

    def stats(self):
        """Return occupancy and collision figures.

        Returns:
            dict: capacity, num_used, occupancy (share of cells in use), num_replaced (newer
            continuation of a known n-gram), num_collided (another n-gram's entry overwritten; 0
            without check bits), num_aged (entries freed for new ones), false_hit_rate (expected
            share of unknown n-grams that find an entry).
        """
        cdef PoolShareC pending = self._pending()
        cdef double occupancy = <double>self.num_used / <double>self.capacity
        return {
            "capacity": self.capacity,
            "num_used": self.num_used,
            "occupancy": occupancy,
            "num_replaced": ngs_load64(&self.c.counters.num_replaced) + pending.replaced,
            "num_collided": ngs_load64(&self.c.counters.num_collided) + pending.collided,
            "num_aged": ngs_load64(&self.c.counters.num_aged),
            "false_hit_rate": occupancy / (1 << self.check_bits),
        }

    def check(self):
        """Return the first broken invariant, "" when all hold. O(capacity); no thread may insert meanwhile."""
        cdef Py_ssize_t i
        cdef int64_t used = 0
        for i in range(self.capacity):
            used += self.c.cells[i] != 0
            if self.c.cells[i] != 0 and (self.c.cells[i] & TOKEN_MASK) - 1 >= self.c.vocab_size:
                return "pool: a cell holds no token of the vocabulary"
        return "" if used == self.num_used else "pool: num_used differs from the cells in use"


cdef hash_t _hash_of(token_ids) except? 0:
    cdef const token_t[::1] view = token_view(token_ids, "token_ids")
    if view.shape[0] == 0:
        raise InputError("token_ids must hold at least 1 token, got 0")
    return hash_tokens(&view[0], view.shape[0], LCG)
