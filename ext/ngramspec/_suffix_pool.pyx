"""SuffixPool: what requests said, for the suffix drafters of other requests.

Texts lie in blocks of BLOCK tokens. A text begins with up to PREFIX tokens of what came before it,
which are there to be compared and not indexed, and so does every block in which it goes on. When all
blocks are taken a clock hand looks for one whose tokens have not been right lately.
"""

cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ngramspec._lines cimport (
    NUM_ORDERS, context_hashes, lines_find, lines_free, lines_insert, lines_make, lines_nbytes,
    lines_prefetch,
)
from ngramspec._memory cimport ngs_release, ngs_take
from ngramspec._types cimport STATUS_OK, hash_t, ngs_lock, ngs_unlock

from ngramspec.errors import InputError

cdef extern from "ngs_suffix.h" nogil:
    uint32_t ngs_alike(const token_t* a, const token_t* b, int n)
    int ngs_run(uint32_t mask)

cdef enum:
    AHEAD = 8             # tokens whose lines are fetched before they are written
    LOOKS = 64            # blocks that the clock hand looks at before it takes the least useful one
    MOST_USEFUL = 8
    FRESH = 1             # usefulness of a new block
    OWN = BLOCK - PREFIX  # tokens of a block that are not repeated from another one
    MOST_TOKENS = 29000000  # so that positions fit a word of a line


cdef Py_ssize_t _least_useful(SuffixPoolC* p) noexcept nogil:
    """Wear down blocks from the hand on; return one that is not useful, or the least useful seen."""
    cdef Py_ssize_t best = -1
    cdef Py_ssize_t at
    cdef int _i
    cdef BlockC* block
    for _i in range(LOOKS):
        at = p.hand
        p.hand = (p.hand + 1) % p.num_blocks
        block = &p.blocks[at]
        if block.open:
            continue
        if block.useful == 0:
            return at
        block.useful -= 1
        if best < 0 or block.useful < p.blocks[best].useful:
            best = at
    return best


cdef Py_ssize_t _take_block(SuffixPoolC* p) noexcept nogil:
    """Return an empty block, -1 when all that the hand saw are being written."""
    cdef Py_ssize_t at
    if p.num_used < p.num_blocks:
        p.num_used += 1
        return p.num_used - 1
    at = _least_useful(p)
    if at >= 0:
        p.num_evicted += p.blocks[at].indexed
        p.num_stored -= p.blocks[at].indexed
    return at


cdef bint _open_block(SuffixPoolC* p, WriterC* w, Kind kind, bint goes_on) noexcept nogil:
    """Let the writer go on in a new block; False when there is none."""
    cdef Py_ssize_t at = _take_block(p)
    cdef BlockC* block
    if at < 0:
        return False
    block = &p.blocks[at]
    block[0] = BlockC(-1, -1, w.stream, 0, 0, FRESH, kind, True)
    if goes_on:
        block.prev = w.block
        block.len = PREFIX
        memcpy(p.tokens + at * BLOCK, p.tokens + w.block * BLOCK + BLOCK - PREFIX, PREFIX * sizeof(token_t))
        p.blocks[w.block].next = <int32_t>at
    if w.block >= 0:
        p.blocks[w.block].open = False
    w.block = <int32_t>at
    return True


cdef void _put(SuffixPoolC* p, WriterC* w, token_t token) noexcept nogil:
    cdef BlockC* block = &p.blocks[w.block]
    p.tokens[w.block * <Py_ssize_t>BLOCK + block.len] = token
    block.len += 1


cdef bint _begin_text(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Kind kind) noexcept nogil:
    """Write a gap and the tokens before text[start], so that at most OWN follow; False when there is no room."""
    cdef Py_ssize_t before = start if start < PREFIX else PREFIX
    cdef Py_ssize_t _i, i
    if w.block < 0 or p.blocks[w.block].kind != kind or p.blocks[w.block].len + before + 2 > BLOCK:
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
    p.num_stored += 1
    return True


cdef Py_ssize_t _known(SuffixPoolC* p, const token_t* text, Py_ssize_t i, Py_ssize_t last, const hash_t* hashes,
                       int num) noexcept nogil:
    """Return where the pool holds text[i] after the same PREFIX tokens, -1 when nowhere.

    `last` is where it holds text[i - 1], or -1.
    """
    cdef uint32_t[4] found
    cdef Py_ssize_t at, before
    cdef int count, k
    if last >= 0:
        at = pool_next(p, last)
        if at >= 0 and p.tokens[at] == text[i]:
            return at
    if num < NUM_ORDERS or i < PREFIX:
        return -1
    count = lines_find(&p.lines, hashes[NUM_ORDERS - 1], found)
    for k in range(count):
        before = pool_before(p, found[k])
        if before >= PREFIX and p.tokens[found[k]] == text[i] and (
                ngs_run(ngs_alike(p.tokens + found[k], text + i, PREFIX)) == PREFIX):
            return found[k]
    return -1


cdef void pool_write(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Py_ssize_t end,
                     Kind kind) noexcept nogil:
    """Index text[start:end], after what was written last; of prompts only what the pool does not hold."""
    cdef hash_t[AHEAD][NUM_ORDERS] hashes
    cdef int[AHEAD] num
    cdef bint running = w.block >= 0 and w.end == start and (
        p.blocks[w.block].kind == kind and p.blocks[w.block].len > 0)
    cdef Py_ssize_t at = -1
    cdef Py_ssize_t i, k
    w.end = -1
    for i in range(start, end + AHEAD - 1):
        if i < end:
            num[i % AHEAD] = context_hashes(text + i, i, hashes[i % AHEAD])
            lines_prefetch(&p.lines, hashes[i % AHEAD], num[i % AHEAD])
        k = i - AHEAD + 1
        if k < start:
            continue
        if kind == KIND_PROMPT:
            at = _known(p, text, k, at, hashes[k % AHEAD], num[k % AHEAD])
            if at >= 0:
                running = False
                p.num_known += 1
                continue
        if not running and not _begin_text(p, w, text, k, kind):
            return
        if not _add(p, w, text[k], hashes[k % AHEAD], num[k % AHEAD]):
            return
        running = True
    w.end = end if running else -1


cdef void pool_close(SuffixPoolC* p, WriterC* w) noexcept nogil:
    if w.block >= 0:
        p.blocks[w.block].open = False
        w.block = -1


cdef Py_ssize_t pool_next(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    cdef Py_ssize_t b = position // BLOCK
    cdef Py_ssize_t after = position % BLOCK + 1
    cdef Py_ssize_t next
    if after < p.blocks[b].len:
        return position + 1 if p.tokens[position + 1] >= 0 else -1
    if after < BLOCK:
        return -1
    next = p.blocks[b].next
    if next < 0 or p.blocks[next].prev != b or p.blocks[next].len <= PREFIX:
        return -1
    return next * BLOCK + PREFIX


cdef Py_ssize_t pool_before(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    cdef Py_ssize_t b = position // BLOCK
    cdef Py_ssize_t before = position % BLOCK
    if b >= p.num_used or before >= p.blocks[b].len or p.tokens[position] < 0:
        return -1
    return before


cdef void pool_praise(SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    cdef BlockC* block = &p.blocks[position // BLOCK]
    if block.useful < MOST_USEFUL:
        block.useful += 1


@cython.final
cdef class SuffixPool:
    """SuffixPool(capacity=1048576): what requests said, shared by the suffix drafters that are given it.

    A request writes what it generates while it runs, and at its end the parts of its prompt that the
    pool does not hold yet. When it is full, the blocks of 256 tokens go whose tokens were right least
    lately.

    Args:
        capacity: Tokens held at most, 4,096..29,000,000; rounded up to blocks.

    Raises:
        InputError: capacity is out of its bounds.
        MemoryError: No room.

    Memory: 31.4 bytes per token of capacity, taken at once: no request waits for pages later.
    Thread-safety: drafters may share it across threads; they wait for one another for microseconds.
    """

    def __cinit__(self, Py_ssize_t capacity=1 << 20):
        if not 4096 <= capacity <= MOST_TOKENS:
            raise InputError(f"capacity must be in 4096..{MOST_TOKENS}, got {capacity}")
        self.c.num_blocks = (capacity + OWN - 1) // OWN
        self.c.tokens = <token_t*>ngs_take(<size_t>(self.c.num_blocks * BLOCK) * sizeof(token_t), True)
        self.c.blocks = <BlockC*>calloc(<size_t>self.c.num_blocks, sizeof(BlockC))
        if self.c.tokens == NULL or self.c.blocks == NULL or (
                lines_make(&self.c.lines, self.c.num_blocks * OWN, True) != STATUS_OK):
            raise MemoryError(f"no memory for a pool of {capacity} tokens")

    def __dealloc__(self):
        ngs_release(self.c.tokens, <size_t>(self.c.num_blocks * BLOCK) * sizeof(token_t))
        free(self.c.blocks)
        lines_free(&self.c.lines)

    @property
    def capacity(self):
        """Return the number of tokens that it holds at most."""
        return self.c.num_blocks * OWN

    @property
    def num_tokens(self):
        """Return the number of tokens that it holds."""
        return self.c.num_stored

    @property
    def num_known(self):
        """Return how many prompt tokens were left out because it held them already."""
        return self.c.num_known

    @property
    def num_evicted(self):
        """Return how many tokens had to make room for newer ones."""
        return self.c.num_evicted

    @property
    def nbytes(self):
        """Return its memory in bytes."""
        return (<size_t>(self.c.num_blocks * BLOCK) * sizeof(token_t) + lines_nbytes(&self.c.lines)
                + <size_t>self.c.num_blocks * sizeof(BlockC))

    def clear(self):
        """Forget everything, for requests that begin from now on.

        Cost: O(capacity). Threads: keeps the GIL.
        """
        cdef Py_ssize_t i
        with nogil:
            ngs_lock(&self.c.lock)
            for i in range(self.c.num_used):
                self.c.blocks[i].len = 0
                self.c.blocks[i].indexed = 0
                self.c.blocks[i].useful = 0
            self.c.num_stored = 0
            ngs_unlock(&self.c.lock)
