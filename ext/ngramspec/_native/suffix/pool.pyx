"""SuffixPool: texts of requests, for the suffix drafters of other requests.

Texts lie in blocks of BLOCK tokens. A text begins with up to PREFIX tokens from before it, and so does
every block that continues it: they are compared but not indexed. When all blocks are taken, a clock
hand looks for one whose tokens have not been right recently. Writers take turns under a lock, a few
tokens each; readers take no lock and check afterwards that the text was not replaced.
"""

cimport cython

from ngramspec._native.core.threads cimport locks_add, locks_remove
from ngramspec._native.core.types cimport (
    STATUS_OK, hash_t, ngs_give_way, ngs_load64, ngs_lock, ngs_release, ngs_release32, ngs_store32, ngs_store64,
    ngs_take, ngs_try_lock, ngs_unlock,
)
from ngramspec._native.suffix.index cimport (
    NUM_ORDERS, context_hashes, lines_find, lines_free, lines_insert, lines_make, lines_nbytes, lines_prefetch,
)

from ngramspec.errors import InputError

cdef extern from "ngs_suffix.h" nogil:
    uint32_t ngs_alike(const token_t* a, const token_t* b, int n)
    int ngs_run(uint32_t mask)

cdef enum:
    CHUNK = 64            # tokens written per hold of the lock
    CLEARED = 1024        # blocks cleared per hold
    LOOKS = 64            # blocks that the clock hand looks at before it takes the least useful one
    MOST_USEFUL = 8
    FRESH = 1             # usefulness of a new block
    OWN = BLOCK - PREFIX  # tokens of a block that are not repeated from another one
    MOST_TOKENS = 29000000  # so that positions fit a word of a line

# Where the pool holds the previous token of the prompt that is written, -1 = nowhere.
cdef struct KnownC:
    Py_ssize_t at
    uint32_t generation


cdef inline void _count(int64_t* counter, int64_t n) noexcept nogil:
    """Add to a counter of the pool, which others may read."""
    ngs_store64(counter, counter[0] + n)


cdef inline void _link(int32_t* link, Py_ssize_t value) noexcept nogil:
    ngs_store32(<uint32_t*>link, <uint32_t>value)


cdef inline int32_t _linked(const int32_t* link) noexcept nogil:
    return <int32_t>ngs_load32(<const uint32_t*>link)


cdef void _empty(TokenBlockC* block) noexcept nogil:
    """Empty a block: first its length, then its generation; only then may it be written."""
    ngs_store32(&block.len, 0)
    ngs_release32(&block.generation, block.generation + 1)
    ngs_fence()


cdef Py_ssize_t _least_useful(SuffixPoolC* p) noexcept nogil:
    """Wear down blocks from the hand on; return a useless one, or the least useful seen, -1 if all are open."""
    cdef Py_ssize_t best = -1
    cdef Py_ssize_t at
    cdef uint32_t useful, least = 0
    cdef int _i
    for _i in range(LOOKS):
        at = p.hand
        p.hand = (p.hand + 1) % p.num_blocks
        if p.blocks[at].open:
            continue
        useful = ngs_load32(&p.blocks[at].useful)
        if useful == 0:
            return at
        ngs_store32(&p.blocks[at].useful, useful - 1)
        if best < 0 or useful - 1 < least:
            best, least = at, useful - 1
    return best


cdef Py_ssize_t _take_block(SuffixPoolC* p) noexcept nogil:
    """Return a block to be emptied, -1 when all that the hand saw are being written."""
    cdef Py_ssize_t at
    if p.num_used < p.num_blocks:
        p.num_used += 1
        return p.num_used - 1
    at = _least_useful(p)
    if at >= 0:
        _count(&p.num_evicted, p.blocks[at].indexed)
        _count(&p.num_stored, -<int64_t>p.blocks[at].indexed)
    return at


cdef bint _open_block(SuffixPoolC* p, WriterC* w, Kind kind, bint goes_on) noexcept nogil:
    """Move the writer to a new block; False when there is none."""
    cdef Py_ssize_t at = _take_block(p)
    cdef Py_ssize_t before = w.block
    cdef Py_ssize_t i
    cdef TokenBlockC* block
    if at < 0:
        return False
    block = &p.blocks[at]
    _empty(block)
    _link(&block.next, -1)
    _link(&block.prev, before if goes_on else -1)
    _link(&block.stream, w.stream)
    ngs_store32(&block.kind, kind)
    ngs_store32(&block.useful, FRESH)
    block.indexed = 0
    block.open = True
    w.block = <int32_t>at
    if goes_on:
        for i in range(BLOCK - PREFIX, BLOCK):
            _put(p, w, p.tokens[before * BLOCK + i])
        _link(&p.blocks[before].next, at)
    if before >= 0:
        p.blocks[before].open = False
    return True


cdef void _put(SuffixPoolC* p, WriterC* w, token_t token) noexcept nogil:
    cdef TokenBlockC* block = &p.blocks[w.block]
    ngs_store32(<uint32_t*>p.tokens + w.block * <Py_ssize_t>BLOCK + block.len, <uint32_t>token)
    ngs_release32(&block.len, block.len + 1)


cdef bint _begin_text(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Kind kind) noexcept nogil:
    """Write a gap and the tokens before text[start], so that at most OWN follow; False when there is no room."""
    cdef Py_ssize_t before = start if start < PREFIX else PREFIX
    cdef Py_ssize_t _i, i
    if w.block < 0 or p.blocks[w.block].kind != <uint32_t>kind or p.blocks[w.block].len + before + 2 > BLOCK:
        if not _open_block(p, w, kind, False):
            return False
    for _i in range(1 if p.blocks[w.block].len else PREFIX - before):
        _put(p, w, -1)
    for i in range(start - before, start):
        _put(p, w, text[i])
    return True


cdef bint _add(SuffixPoolC* p, WriterC* w, token_t token, const hash_t* hashes, int num) noexcept nogil:
    if p.blocks[w.block].len == BLOCK and not _open_block(p, w, <Kind>p.blocks[w.block].kind, True):
        return False
    lines_insert(&p.lines, hashes, num, w.block * <Py_ssize_t>BLOCK + p.blocks[w.block].len)
    _put(p, w, token)
    p.blocks[w.block].indexed += 1
    return True


cdef Py_ssize_t _place_of(SuffixPoolC* p, const token_t* text, Py_ssize_t i, Py_ssize_t last, const hash_t* hashes,
                          int num) noexcept nogil:
    """Return where the pool holds text[i] after the same PREFIX tokens, -1 when nowhere.

    `last` is where it holds text[i - 1], or -1.
    """
    cdef uint32_t[4] positions
    cdef Py_ssize_t at, before
    cdef int count, k
    if last >= 0:
        at = pool_next(p, last)
        if at >= 0 and p.tokens[at] == text[i]:
            return at
    if num < NUM_ORDERS or i < PREFIX:
        return -1
    count = lines_find(&p.lines, hashes[NUM_ORDERS - 1], positions)
    for k in range(count):
        before = pool_before(p, positions[k])
        if before >= PREFIX and p.tokens[positions[k]] == text[i] and (
                ngs_run(ngs_alike(p.tokens + positions[k], text + i, PREFIX)) == PREFIX):
            return positions[k]
    return -1


cdef bint _write(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Py_ssize_t end, Kind kind,
                 const hash_t* hashes, const int* num, KnownC* place) noexcept nogil:
    """Index a chunk whose contexts are hashed; False when there is no room for all of it. The lock is held."""
    cdef bint running
    cdef Py_ssize_t at, i
    cdef int64_t num_known = 0, num_added = 0
    cdef bint room = True
    ngs_fence()  # readers who see a token see the generations that others wrote before
    if w.stream == 0:
        p.streams += 1
        w.stream = p.streams
    running = w.block >= 0 and w.end == start and (
        p.blocks[w.block].kind == <uint32_t>kind and p.blocks[w.block].len > 0)
    # Between two chunks others may have written there.
    at = place.at if place.at >= 0 and pool_stands(p, place.at, place.generation) else -1
    for i in range(start, end):
        if kind == KIND_PROMPT:
            at = _place_of(p, text, i, at, hashes + (i - start) * NUM_ORDERS, num[i - start])
            if at >= 0:
                running = False
                num_known += 1
                continue
        room = (running or _begin_text(p, w, text, i, kind)) and (
            _add(p, w, text[i], hashes + (i - start) * NUM_ORDERS, num[i - start]))
        if not room:
            running = False
            break
        num_added += 1
        running = True
    w.end = end if running else -1
    place.at = at
    if at >= 0:
        place.generation = pool_generation(p, at)
    _count(&p.num_known, num_known)
    _count(&p.num_stored, num_added)
    return room


cdef Py_ssize_t pool_write(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Py_ssize_t end,
                           Kind kind, bint waits) noexcept nogil:
    """Hash a chunk and fetch its lines, then write it under the lock."""
    cdef hash_t[CHUNK][NUM_ORDERS] hashes
    cdef int[CHUNK] num
    cdef KnownC place = KnownC(-1, 0)
    cdef Py_ssize_t i, stop
    cdef bint room
    while start < end:
        stop = start + CHUNK if end - start > CHUNK else end
        for i in range(start, stop):
            num[i - start] = context_hashes(text + i, i, hashes[i - start])
            lines_prefetch(&p.lines, hashes[i - start], num[i - start])
        if waits:
            ngs_lock(&p.lock)
        elif not ngs_try_lock(&p.lock):
            return start
        room = _write(p, w, text, start, stop, kind, &hashes[0][0], num, &place)
        if ngs_unlock(&p.lock):
            ngs_give_way(&p.lock)
        start = stop if room else end
    return start


cdef void pool_close(SuffixPoolC* p, WriterC* w) noexcept nogil:
    if w.block >= 0:
        ngs_lock(&p.lock)
        p.blocks[w.block].open = False
        ngs_unlock(&p.lock)
    w.block = -1
    w.stream = 0


cdef inline Py_ssize_t _next_block(const SuffixPoolC* p, Py_ssize_t b) noexcept nogil:
    """Return the block that continues the text of block b, -1 = none."""
    cdef Py_ssize_t next = _linked(&p.blocks[b].next)
    if next < 0 or _linked(&p.blocks[next].prev) != b or ngs_acquire32(&p.blocks[next].len) <= PREFIX:
        return -1
    return next


cdef Py_ssize_t pool_next(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    cdef Py_ssize_t b = position // BLOCK
    cdef Py_ssize_t after = position % BLOCK + 1
    if after < <Py_ssize_t>ngs_acquire32(&p.blocks[b].len):
        return position + 1 if pool_token(p, position + 1) >= 0 else -1
    if after < BLOCK:
        return -1
    b = _next_block(p, b)
    return b * BLOCK + PREFIX if b >= 0 else -1


cdef bint pool_go_on(const SuffixPoolC* p, Py_ssize_t* position, uint32_t* generation, token_t* token) noexcept nogil:
    cdef Py_ssize_t last = position[0]
    cdef Py_ssize_t next
    cdef uint32_t before = generation[0]
    if last % BLOCK + 1 < BLOCK:
        position[0] = pool_next(p, last)
    else:
        next = _linked(&p.blocks[last // BLOCK].next)
        if next >= 0:
            generation[0] = pool_generation(p, next * BLOCK)
        position[0] = pool_next(p, last)
        if position[0] >= 0 and position[0] // BLOCK != next:
            return False
    if position[0] < 0:
        return False
    token[0] = pool_token(p, position[0])
    return pool_stands(p, last, before) and pool_stands(p, position[0], generation[0])


cdef Py_ssize_t pool_before(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    cdef Py_ssize_t before = position % BLOCK
    if before >= <Py_ssize_t>ngs_acquire32(&p.blocks[position // BLOCK].len) or pool_token(p, position) < 0:
        return -1
    return before


cdef void pool_praise(SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    """Note that a token was right; when two threads do so at once, one update may be lost."""
    cdef uint32_t* useful = &p.blocks[position // BLOCK].useful
    cdef uint32_t so_far = ngs_load32(useful)
    if so_far < MOST_USEFUL:
        ngs_store32(useful, so_far + 1)


cdef const char* _check(const SuffixPoolC* p) noexcept nogil:
    """Return the first broken invariant, NULL when all hold. The lock is held."""
    cdef const TokenBlockC* block
    cdef int64_t stored = 0
    cdef Py_ssize_t i, k
    for i in range(p.num_blocks):
        block = &p.blocks[i]
        if block.len > BLOCK or block.indexed > block.len:
            return "pool: a block is longer than its room, or has more indexed tokens than tokens"
        if i >= p.num_used and block.len > 0:
            return "pool: a block that was never taken holds tokens"
        if block.len > 0 and not (-1 <= block.next < p.num_blocks and -1 <= block.prev < p.num_blocks):
            return "pool: a text continues in a block that does not exist"
        for k in range(block.len):
            if p.tokens[i * BLOCK + k] < -1:
                return "pool: a token is negative"
        stored += block.indexed
    if stored != p.num_stored:
        return "pool: the indexed tokens of the blocks do not add up to the counter"
    return NULL


@cython.final
cdef class SuffixPool(Owner):
    """SuffixPool(capacity=1048576): texts of requests, shared by the suffix drafters that use it.

    A request writes its output while it runs, and at its end the parts of its prompt that the pool does
    not hold yet. A full pool reuses the blocks of 256 tokens whose tokens were least often right
    recently.

    Args:
        capacity: Most tokens held, 4,096..29,000,000; rounded up to blocks.

    Raises:
        InputError: capacity is out of its bounds.
        MemoryError: No room.

    Memory: 31.4 bytes per token of capacity, allocated at once: no request waits for page faults later.
    Thread-safety: drafters may share it across threads. They read without a lock; one writes at a time,
        at most 64 tokens before the next may.
    """

    def __cinit__(self, Py_ssize_t capacity=1 << 20):
        if not 4096 <= capacity <= MOST_TOKENS:
            raise InputError(f"capacity must be in 4096..{MOST_TOKENS}, got {capacity}")
        self.c.num_blocks = (capacity + OWN - 1) // OWN
        self.c.tokens = <token_t*>ngs_take(<size_t>(self.c.num_blocks * BLOCK) * sizeof(token_t), True)
        self.c.blocks = <TokenBlockC*>self.take(self.c.num_blocks, sizeof(TokenBlockC))
        if self.c.tokens == NULL or (
                lines_make(&self.c.lines, self.c.num_blocks * OWN, True) != STATUS_OK):
            raise MemoryError(f"no memory for a pool of {capacity} tokens")
        locks_add(&self.c.lock)

    def __dealloc__(self):
        locks_remove(&self.c.lock)
        ngs_release(self.c.tokens, <size_t>(self.c.num_blocks * BLOCK) * sizeof(token_t))
        lines_free(&self.c.lines)

    @property
    def capacity(self):
        """Return the number of tokens that fit."""
        return self.c.num_blocks * OWN

    @property
    def num_tokens(self):
        """Return the number of tokens that it holds."""
        return ngs_load64(&self.c.num_stored)

    @property
    def num_known(self):
        """Return how many prompt tokens were left out because it held them already."""
        return ngs_load64(&self.c.num_known)

    @property
    def num_evicted(self):
        """Return how many tokens were evicted for newer ones."""
        return ngs_load64(&self.c.num_evicted)

    @property
    def nbytes(self):
        """Return its memory in bytes."""
        return (<size_t>(self.c.num_blocks * BLOCK) * sizeof(token_t) + lines_nbytes(&self.c.lines)
                + <size_t>self.c.num_blocks * sizeof(TokenBlockC))

    def clear(self):
        """Remove all texts; running requests go on and may add more of theirs.

        Cost: O(capacity), a part at a time. Threads: releases the GIL; requests run meanwhile.
        """
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t i
        cdef bint more = True
        with nogil:
            while more:
                ngs_lock(&self.c.lock)
                for i in range(start, min(start + CLEARED, self.c.num_used)):
                    _empty(&self.c.blocks[i])
                    _count(&self.c.num_stored, -<int64_t>self.c.blocks[i].indexed)
                    self.c.blocks[i].indexed = 0
                    ngs_store32(&self.c.blocks[i].useful, 0)
                start += CLEARED
                more = start < self.c.num_used
                if ngs_unlock(&self.c.lock):
                    ngs_give_way(&self.c.lock)

    def check(self):
        """Return the first broken invariant, "" when all hold. O(capacity); for tests: writers wait meanwhile."""
        cdef const char* broken
        with nogil:
            ngs_lock(&self.c.lock)
            broken = _check(&self.c)
            ngs_unlock(&self.c.lock)
        return "" if broken == NULL else broken.decode()
