"""PoolImage: make the cells of a hash pool from sorted entries, independent of the order of the texts."""

cimport cython

from ngramspec._native.core.arguments cimport entries_view
from ngramspec._native.core.packing cimport EntryC, entry_count, entry_follower, same_pair
from ngramspec._native.core.types cimport int64_t, uint32_t, uint64_t
from ngramspec._native.mod.cell cimport CHECK_POSITION, CONFIDENCE_ONE, MAX_CONFIDENCE

import numpy as np

from ngramspec.errors import InputError


@cython.final
cdef class PoolImage:
    """PoolImage(cell_bits, check_bits, max_occupancy): make the 2**cell_bits cells of a pool.

    Each cell keeps its most frequent continuation; ties go to the smaller check bits, then to the
    smaller token. Above max_occupancy the rarest continuations are dropped; at equal counts those in
    higher cells.

    Args:
        cell_bits: Binary logarithm of the number of cells, 10..31.
        check_bits: Check bits that the entries carry, 0..8.
        max_occupancy: Share of the cells that may be in use, 0 < max_occupancy <= 0.95.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room for the cells, 8 bytes each while it exists.

    Thread-safety: one thread at a time.
    """

    cdef int _cell_bits
    cdef int _check_bits
    cdef double _max_occupancy
    cdef object _cell_array
    cdef uint32_t[::1] _cells
    cdef uint32_t[::1] _counts   # of the continuation in each cell
    cdef EntryC _pair            # in the making
    cdef uint64_t _total

    def __cinit__(self, cell_bits, check_bits, max_occupancy):
        if not 10 <= cell_bits <= 31 or not 0 <= check_bits <= 8 or not 0.0 < max_occupancy <= 0.95:
            raise InputError(f"cell_bits must be in 10..31, check_bits in 0..8, max_occupancy above 0 and at "
                             f"most 0.95, got {cell_bits}, {check_bits}, {max_occupancy}")
        self._cell_bits = cell_bits
        self._check_bits = check_bits
        self._max_occupancy = max_occupancy
        self._cell_array = np.zeros(1 << cell_bits, dtype=np.uint32)
        self._cells = self._cell_array
        self._counts = np.zeros(1 << cell_bits, dtype=np.uint32)

    cdef void _finish_pair(self) noexcept nogil:
        cdef uint64_t cell = self._pair.a >> (64 - self._cell_bits)
        cdef uint32_t check = <uint32_t>(self._pair.a << self._cell_bits >> 32) >> 24
        cdef uint32_t count = <uint32_t>(self._total if self._total < 0x7FFFFFFF else 0x7FFFFFFF)
        cdef uint32_t confidence = count - 1 if count - 1 < MAX_CONFIDENCE else MAX_CONFIDENCE
        self._total = 0
        if count > self._counts[cell]:
            self._counts[cell] = count
            self._cells[cell] = (confidence * CONFIDENCE_ONE
                                 | check >> (8 - self._check_bits) << CHECK_POSITION
                                 | <uint32_t>(entry_follower(&self._pair) + 1))

    def feed(self, entries):
        """Take the next entries that `Tally.hashed` made: uint64, shape (n, 2), ascending. O(n).

        Raises:
            InputError: entries has another shape or dtype.
        """
        cdef const uint64_t[:, ::1] view = entries_view(entries)
        cdef const EntryC* e
        cdef Py_ssize_t i
        with nogil:
            for i in range(view.shape[0]):
                e = <const EntryC*>&view[i, 0]
                if self._total and not same_pair(&self._pair, e):
                    self._finish_pair()
                if self._total == 0:
                    self._pair = e[0]
                self._total += <uint64_t>entry_count(e)

    def finish(self):
        """Return the cells, uint32 of shape (2**cell_bits,); call nothing after it. O(cells)."""
        cdef int64_t most = <int64_t>(<double>self._cells.shape[0] * self._max_occupancy)
        cdef int64_t left = 0
        cdef uint32_t least
        cdef Py_ssize_t i
        if self._total:
            self._finish_pair()
        counts = np.asarray(self._counts)
        used = int(np.count_nonzero(counts))
        if used > most:
            # The smallest count that still has room; cells with it are kept in order while there is room.
            least = np.partition(counts, counts.size - most)[counts.size - most] if most else 0xFFFFFFFF
            left = most - int(np.count_nonzero(counts > least))
            for i in range(self._cells.shape[0]):
                if self._counts[i] == least and left > 0:
                    left -= 1
                elif self._counts[i] <= least:
                    self._cells[i] = 0
        return self._cell_array
