"""Tally: collect tokenised text, then hand out its n-grams with followers, sorted and added up."""

cimport cython
from libc.stdlib cimport free
from libc.string cimport memcpy

from ngramspec._arguments cimport token_view
from ngramspec._hash cimport hash_power, hash_slide, hash_step
from ngramspec._packing cimport (
    ENTRY_COUNT_MAX, FOLLOWER_SHIFT, PACKED_MAX, STORED_TOKEN_MAX, EntryC, entry_of, key_of,
)
from ngramspec._sort cimport sort_items, sum_equal
from ngramspec._types cimport STATUS_OK, hash_t, token_t, uint64_t

from ngramspec._history cimport grow

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    BORDER = -1           # between documents: no n-gram crosses it


cdef Py_ssize_t _windows(const token_t* tokens, Py_ssize_t n, Py_ssize_t size, EntryC* out) noexcept nogil:
    """Write one entry per n-gram of `size` tokens that has a follower; return how many."""
    cdef Py_ssize_t i, known = 0, num = 0
    for i in range(n):
        if tokens[i] == BORDER:
            known = 0
            continue
        if known >= size:
            out[num] = entry_of(key_of(&tokens[i - 1], size), tokens[i], 1)
            num += 1
        known += 1
    return num


cdef Py_ssize_t _short_windows(const token_t* tokens, Py_ssize_t n, Py_ssize_t size, uint64_t* out) noexcept nogil:
    """The same for 1 or 2 tokens in half the memory: the key, and the follower in its low bits."""
    cdef Py_ssize_t i, known = 0, num = 0
    for i in range(n):
        if tokens[i] == BORDER:
            known = 0
            continue
        if known >= size:
            out[num] = key_of(&tokens[i - 1], size).a | <uint64_t>tokens[i]
            num += 1
        known += 1
    return num


cdef Py_ssize_t _unpack_short(const uint64_t* windows, Py_ssize_t n, EntryC* out) noexcept nogil:
    """Turn sorted short windows into entries, equal ones added up; out may be NULL. Returns how many."""
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


cdef Py_ssize_t _pool_windows(const token_t* tokens, Py_ssize_t n, Py_ssize_t n_match, int cell_bits, int check_bits,
                              EntryC* out) noexcept nogil:
    """The same for a hash pool: `a` holds the cell's number and the check bits of the n-gram's hash."""
    cdef hash_t power = hash_power(n_match)
    cdef hash_t h = 0
    cdef Py_ssize_t i, known = 0, num = 0
    for i in range(n):
        if tokens[i] == BORDER:
            known = h = 0
            continue
        if known < n_match:
            h = hash_step(h, tokens[i])
        else:
            out[num].a = h << (64 - cell_bits)
            if check_bits:
                out[num].a |= (h >> (64 - check_bits)) << (64 - cell_bits - check_bits)
            out[num].b = <uint64_t>tokens[i] << FOLLOWER_SHIFT | 1
            num += 1
            h = hash_slide(h, tokens[i - n_match], tokens[i], power)
        known += 1
    return num


@cython.final
cdef class Tally:
    """Tally(): tokens of many documents, counted on demand.

    Holds 4 bytes per token; counting takes 32 bytes per token more for its duration.

    Thread-safety: one thread at a time; different tallies run in parallel.
    """

    cdef token_t* _tokens
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _len

    def __dealloc__(self):
        free(self._tokens)

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
        """Return every n-gram of `size` tokens with each of its followers and how often it came.

        Args:
            size: Tokens per n-gram, 1..4.

        Returns:
            uint64, shape (m, 2): packed entries, ascending. A new array.

        Raises:
            InputError: size is out of its bounds.
            MemoryError: No room to count.

        Cost: O(tokens), 20 to 40 ns each. Threads: releases the GIL.
        """
        if not 1 <= size <= PACKED_MAX:
            raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
        return self._counted_short(size) if size < 3 else self._counted(size, 0, 0)

    def hashed(self, Py_ssize_t n_match, int cell_bits, int check_bits):
        """Return what followed each n-gram of n_match tokens, by its cell in a hash pool.

        Args:
            n_match: Tokens per n-gram, >= 1.
            cell_bits: Binary logarithm of the pool's number of cells, 10..31.
            check_bits: Bits of the hash kept besides, 0..8.

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
        return self._counted(n_match, cell_bits, check_bits)

    cdef object _counted_short(self, Py_ssize_t size):
        windows, spare = np.empty(self._len + 1, dtype=np.uint64), np.empty(self._len + 1, dtype=np.uint64)
        cdef uint64_t[::1] window_view = windows
        cdef uint64_t[::1] spare_view = spare
        cdef uint64_t[:, ::1] out
        cdef Py_ssize_t num, num_entries
        with nogil:
            num = _short_windows(self._tokens, self._len, size, &window_view[0])
            sort_items(&window_view[0], &spare_view[0], num)
            num_entries = _unpack_short(&window_view[0], num, NULL)
        made = np.empty((num_entries + 1, 2), dtype=np.uint64)
        out = made
        with nogil:
            _unpack_short(&window_view[0], num, <EntryC*>&out[0, 0])
        return made[:num_entries]

    cdef object _counted(self, Py_ssize_t size, int cell_bits, int check_bits):
        entries = np.empty((self._len + 1, 2), dtype=np.uint64)
        spare = np.empty((self._len + 1, 2), dtype=np.uint64)
        cdef uint64_t[:, ::1] entry_view = entries
        cdef uint64_t[:, ::1] spare_view = spare
        cdef EntryC* e = <EntryC*>&entry_view[0, 0]
        cdef Py_ssize_t num
        with nogil:
            if cell_bits:
                num = _pool_windows(self._tokens, self._len, size, cell_bits, check_bits, e)
            else:
                num = _windows(self._tokens, self._len, size, e)
            sort_items(e, <EntryC*>&spare_view[0, 0], num)
            num = sum_equal(e, num)
        return entries[:num]
