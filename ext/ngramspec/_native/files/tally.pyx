"""Tally: collect tokenised text, then return its n-grams with followers and counts, sorted."""

cimport cython
from libc.string cimport memcpy, memset

from ngramspec._native.core.arguments cimport token_view
from ngramspec._native.core.hash cimport LCG, hash_power, hash_step
from ngramspec._native.core.memory cimport grow
from ngramspec._native.core.packing cimport (
    ENTRY_COUNT_MAX, FOLLOWER_SHIFT, MAX_PART_BITS, STORED_TOKEN_MAX, EntryC, entry_follower, entry_of,
    item_t, key_of, part_bits, sort_parts, sum_equal,
)
from ngramspec._native.core.types cimport NGRAM_MAX, STATUS_OK, hash_t, ngs_release, token_t, uint32_t, uint64_t

import numpy as np

from ngramspec.errors import CapacityError, InputError

cdef enum:
    BORDER = -1           # between documents: no n-gram crosses it
    MOST_TOKENS = 0xFFFFFFFF  # places of n-grams have 32 bits

# Walks the tokens and yields every n-gram that has a follower.
cdef struct CursorC:
    const token_t* tokens
    Py_ssize_t len
    Py_ssize_t at             # next token
    Py_ssize_t run            # tokens since the last border
    Py_ssize_t size           # tokens per n-gram
    int cell_bits             # 0: packed n-grams, else cells of a hash pool
    int check_bits
    hash_t power              # LCG^size, for the pool
    hash_t hash               # of the newest `size` tokens, for the pool


cdef inline bint _next_window(CursorC* c, EntryC* out) noexcept nogil:
    """Write the next n-gram and follower as an entry of count 1; False at the end."""
    cdef token_t token
    while c.at < c.len:
        token = c.tokens[c.at]
        c.at += 1
        if token == BORDER:
            c.run = 0
            c.hash = 0
            continue
        c.run += 1
        if c.cell_bits:
            out.a = c.hash << (64 - c.cell_bits)
            if c.check_bits:
                out.a |= c.hash >> (64 - c.check_bits) << (64 - c.cell_bits - c.check_bits)
            c.hash = hash_step(c.hash, token, LCG)
            if c.run <= c.size:
                continue
            c.hash -= <hash_t>c.tokens[c.at - 1 - c.size] * c.power
            out.b = <uint64_t>token << FOLLOWER_SHIFT | 1
            return True
        if c.run > c.size:
            out[0] = entry_of(key_of(&c.tokens[c.at - 2], c.size), token, 1)
            return True
    return False


cdef Py_ssize_t _measure_parts(CursorC c, int bits, uint32_t* places) noexcept nogil:
    """Write where each part begins; return the size of the largest. places[1 << bits] is the number of windows."""
    cdef EntryC e
    cdef Py_ssize_t i, largest = 0
    cdef uint32_t start = 0, count
    memset(places, 0, (((<size_t>1) << bits) + 1) * sizeof(uint32_t))
    while _next_window(&c, &e):
        places[e.a >> (64 - bits) if bits else 0] += 1
    for i in range((<Py_ssize_t>1 << bits) + 1):
        count = places[i]
        places[i] = start
        start += count
        if count > largest:
            largest = count
    return largest


cdef void _scatter(CursorC c, int bits, uint32_t* places, item_t* out) noexcept nogil:
    """Write every window into its part; places then hold where the parts end."""
    cdef EntryC e
    cdef Py_ssize_t part
    while _next_window(&c, &e):
        part = <Py_ssize_t>(e.a >> (64 - bits)) if bits else 0
        if item_t is EntryC:
            out[places[part]] = e
        else:  # 1 or 2 tokens leave room for the follower in the low bits
            out[places[part]] = e.a | <uint64_t>entry_follower(&e)
        places[part] += 1


cdef Py_ssize_t _unpack_short(const uint64_t* windows, Py_ssize_t n, EntryC* out) noexcept nogil:
    """Turn sorted short windows into entries, equal ones summed; return how many. out may be NULL."""
    cdef Py_ssize_t i = 0, num = 0
    cdef Py_ssize_t first
    while i < n:
        first = i
        while i < n and windows[i] == windows[first] and i - first < ENTRY_COUNT_MAX:
            i += 1
        if out != NULL:
            out[num].a = windows[first] & ~<uint64_t>STORED_TOKEN_MAX
            out[num].b = (windows[first] & STORED_TOKEN_MAX) << FOLLOWER_SHIFT | <uint64_t>(i - first)
        num += 1
    return num


@cython.final
cdef class Tally:
    """Tally(max_tokens=4294967295): tokens of many documents, counted on demand.

    Holds 4 bytes per token; counting takes 8 to 24 bytes per token more while it runs.

    Args:
        max_tokens: Most tokens held, one border per document included, 1..2**32 - 1.

    Raises:
        InputError: max_tokens is out of its bounds.

    Thread-safety: one thread at a time; different tallies run in parallel.
    """

    cdef token_t* _tokens
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _len
    cdef readonly Py_ssize_t max_tokens

    def __cinit__(self, Py_ssize_t max_tokens=MOST_TOKENS):
        if not 1 <= max_tokens <= MOST_TOKENS:
            raise InputError(f"max_tokens must be in 1..{MOST_TOKENS}, got {max_tokens}")
        self.max_tokens = max_tokens

    def __dealloc__(self):
        ngs_release(self._tokens, <size_t>self._capacity * sizeof(token_t))

    def __len__(self):
        """Return the number of tokens held, one border per document included."""
        return self._len

    def add(self, token_ids):
        """Append a document.

        Args:
            token_ids: Its tokens, oldest first. int32, shape (n,), ids 0..2097151. Copied.

        Raises:
            InputError: token_ids is not a 1-D int32 array, or an id is out of its bounds; nothing
                was added.
            CapacityError: It would hold more than max_tokens; nothing was added. Count what it
                holds, then clear it.
            MemoryError: No room; nothing was added.

        Cost: O(n). Threads: releases the GIL.
        """
        cdef const token_t[::1] tokens = token_view(token_ids, "token_ids")
        cdef Py_ssize_t n = tokens.shape[0]
        cdef Py_ssize_t i
        cdef token_t bits = 0
        cdef int status = STATUS_OK
        if n == 0:
            return
        if n >= self.max_tokens - self._len:
            raise CapacityError(f"a tally holds {self.max_tokens} tokens at most: it has {self._len}, and {n} more "
                                f"plus a border do not fit; count what it holds and clear it first")
        with nogil:
            for i in range(n):
                bits |= tokens[i]
            if bits <= STORED_TOKEN_MAX:
                status = grow(<void**>&self._tokens, &self._capacity, self._len + n + 1, sizeof(token_t))
        if bits > STORED_TOKEN_MAX:
            raise InputError(f"token_ids must hold ids in 0..{STORED_TOKEN_MAX}, got {max(tokens)}")
        if status != STATUS_OK:
            raise MemoryError(f"no memory for {self._len + n} tokens")
        memcpy(self._tokens + self._len, &tokens[0], <size_t>n * sizeof(token_t))
        self._len += n
        self._tokens[self._len] = BORDER
        self._len += 1

    def clear(self):
        """Forget all documents, keep the memory."""
        self._len = 0

    def ngrams(self, Py_ssize_t size):
        """Return every n-gram of `size` tokens with each of its followers and their count.

        Args:
            size: Tokens per n-gram, 1..4.

        Returns:
            uint64, shape (m, 2): packed entries, ascending. A new array.

        Raises:
            InputError: size is out of its bounds.
            MemoryError: No room to count.

        Cost: O(tokens), 20 to 40 ns each. Threads: releases the GIL.
        """
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
        return self._counted_short(size) if size < 3 else self._counted(self._cursor(size, 0, 0))

    def hashed(self, Py_ssize_t n_match, int cell_bits, int check_bits):
        """Return the followers of each n-gram of n_match tokens, by its cell in a hash pool.

        Args:
            n_match: Tokens per n-gram, >= 1.
            cell_bits: Binary logarithm of the pool's number of cells, 10..31.
            check_bits: Further bits of the hash to keep, 0..8.

        Returns:
            uint64, shape (m, 2): entries whose upper word holds cell number and check bits from
            bit 63 down, ascending. A new array.

        Raises:
            InputError: An argument is out of its bounds.
            MemoryError: No room to count.

        Cost: O(tokens). Threads: releases the GIL.
        """
        if n_match < 1 or not 10 <= cell_bits <= 31 or not 0 <= check_bits <= 8:
            raise InputError(f"n_match must be >= 1, cell_bits in 10..31, check_bits in 0..8, "
                             f"got {n_match}, {cell_bits}, {check_bits}")
        return self._counted(self._cursor(n_match, cell_bits, check_bits))

    cdef CursorC _cursor(self, Py_ssize_t size, int cell_bits, int check_bits) noexcept:
        return CursorC(self._tokens, self._len, 0, 0, size, cell_bits, check_bits, hash_power(size, LCG), 0)

    cdef object _counted_short(self, Py_ssize_t size):
        cdef CursorC cursor = self._cursor(size, 0, 0)
        cdef int bits = part_bits(self._len, sizeof(uint64_t))
        cdef uint32_t[(1 << MAX_PART_BITS) + 1] places
        cdef uint64_t[::1] windows, spare
        cdef uint64_t[:, ::1] out
        cdef Py_ssize_t largest, num, num_entries
        with nogil:
            largest = _measure_parts(cursor, bits, places)
        num = places[1 << bits]
        windows, spare = np.empty(num + 1, dtype=np.uint64), np.empty(largest + 1, dtype=np.uint64)
        with nogil:
            _scatter(cursor, bits, places, &windows[0])
            sort_parts(&windows[0], &spare[0], places, bits)
            num_entries = _unpack_short(&windows[0], num, NULL)
        entries = np.empty((num_entries + 1, 2), dtype=np.uint64)
        out = entries
        with nogil:
            _unpack_short(&windows[0], num, <EntryC*>&out[0, 0])
        return entries[:num_entries]

    cdef object _counted(self, CursorC cursor):
        cdef int bits = part_bits(self._len, sizeof(EntryC))
        cdef uint32_t[(1 << MAX_PART_BITS) + 1] places
        cdef uint64_t[:, ::1] out, spare
        cdef Py_ssize_t largest, num
        cdef EntryC* e
        with nogil:
            largest = _measure_parts(cursor, bits, places)
        num = places[1 << bits]
        entries, spare = np.empty((num + 1, 2), dtype=np.uint64), np.empty((largest + 1, 2), dtype=np.uint64)
        out = entries
        e = <EntryC*>&out[0, 0]
        with nogil:
            _scatter(cursor, bits, places, e)
            sort_parts(e, <EntryC*>&spare[0, 0], places, bits)
            num = sum_equal(e, num)
        return entries[:num]
