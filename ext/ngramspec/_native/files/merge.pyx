"""EntryMerger: many sorted streams of packed entries as one, counts added up."""

cimport cython
from libc.stdlib cimport calloc, free

from ngramspec._native.core.arguments cimport entries_view
from ngramspec._native.core.packing cimport ENTRY_COUNT_MAX, EntryC, entry_count, entry_less, same_pair
from ngramspec._native.core.types cimport COUNT_MAX, uint64_t

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    LARGEST = (COUNT_MAX // ENTRY_COUNT_MAX) + 1   # entries that one pair can need

cdef struct StreamC:
    const EntryC* next
    const EntryC* end
    bint ended


cdef struct MergerC:
    StreamC* streams
    Py_ssize_t num_streams
    Py_ssize_t* heap        # streams that have an entry, the least one first
    Py_ssize_t heap_len
    EntryC pair             # pair in the making; its count is in `total`
    uint64_t total          # 0: none in the making
    uint64_t min_count


cdef inline bint _before(const MergerC* m, Py_ssize_t x, Py_ssize_t y) noexcept nogil:
    return entry_less(m.streams[m.heap[x]].next, m.streams[m.heap[y]].next)


cdef void _sift_down(MergerC* m, Py_ssize_t at) noexcept nogil:
    cdef Py_ssize_t child
    while True:
        child = 2 * at + 1
        if child >= m.heap_len:
            return
        if child + 1 < m.heap_len and _before(m, child + 1, child):
            child += 1
        if not _before(m, child, at):
            return
        m.heap[at], m.heap[child] = m.heap[child], m.heap[at]
        at = child


cdef void _build_heap(MergerC* m) noexcept nogil:
    cdef Py_ssize_t i
    m.heap_len = 0
    for i in range(m.num_streams):
        if m.streams[i].next < m.streams[i].end:
            m.heap[m.heap_len] = i
            m.heap_len += 1
    for i in range(m.heap_len // 2 - 1, -1, -1):
        _sift_down(m, i)


cdef Py_ssize_t _finish_pair(MergerC* m, EntryC* out) noexcept nogil:
    """Write the pair in the making, unless it is too rare; return the number of entries."""
    cdef Py_ssize_t num = 0
    cdef uint64_t left = m.total
    m.total = 0
    if left < m.min_count:
        return 0
    while left > 0:
        out[num] = m.pair
        out[num].b &= ~<uint64_t>ENTRY_COUNT_MAX
        out[num].b |= left if left < ENTRY_COUNT_MAX else ENTRY_COUNT_MAX
        left -= out[num].b & ENTRY_COUNT_MAX
        num += 1
    return num


cdef Py_ssize_t _merge(MergerC* m, EntryC* out, Py_ssize_t room) noexcept nogil:
    """Write merged entries until a stream runs dry or less than LARGEST entries have room."""
    cdef Py_ssize_t num = 0
    cdef StreamC* s
    while m.heap_len > 0 and num + LARGEST <= room:
        s = &m.streams[m.heap[0]]
        if m.total and not same_pair(&m.pair, s.next):
            num += _finish_pair(m, out + num)
        if m.total == 0:
            m.pair = s.next[0]
        m.total += <uint64_t>entry_count(s.next)
        if m.total > COUNT_MAX:
            m.total = COUNT_MAX
        s.next += 1
        if s.next == s.end:
            if not s.ended:
                return num
            m.heap_len -= 1
            m.heap[0] = m.heap[m.heap_len]
        _sift_down(m, 0)
    return num


@cython.final
cdef class EntryMerger:
    """EntryMerger(sources, min_count=1): read many sorted streams of packed entries as one.

    Args:
        sources: Objects whose `read()` returns the next entries, uint64 of shape (n, 2), ascending,
            within and across calls, and an empty array at the end.
        min_count: Pairs of n-gram and follower that came less often in all are left out, 1..2147483647.

    Raises:
        InputError: min_count is out of its bounds.
        MemoryError: No room for the streams.

    Counts saturate at 2147483647, so the result does not depend on the order of the sources.
    Thread-safety: one thread at a time.
    """

    cdef MergerC _m
    cdef list _sources
    cdef list _held

    def __cinit__(self, sources, min_count=1):
        if not 1 <= min_count <= COUNT_MAX:
            raise InputError(f"min_count must be in 1..{COUNT_MAX}, got {min_count}")
        self._sources = list(sources)
        self._held = [None] * len(self._sources)
        self._m.num_streams = len(self._sources)
        self._m.min_count = min_count
        self._m.streams = <StreamC*>calloc(len(self._sources) + 1, sizeof(StreamC))
        self._m.heap = <Py_ssize_t*>calloc(len(self._sources) + 1, sizeof(Py_ssize_t))
        if self._m.streams == NULL or self._m.heap == NULL:
            raise MemoryError(f"no memory for {len(self._sources)} streams")

    def __dealloc__(self):
        free(self._m.streams)
        free(self._m.heap)

    def read(self, Py_ssize_t max_entries=65536):
        """Return the next merged entries.

        Args:
            max_entries: Entries at most; a smaller one counts as 1024.

        Returns:
            uint64, shape (n, 2), ascending; empty at the end only. A new array.

        Raises:
            InputError: A source returned another shape or dtype.

        Cost: O(n log sources). Threads: releases the GIL while merging.
        """
        cdef Py_ssize_t room = max_entries if max_entries > 1024 else 1024
        cdef Py_ssize_t num = 0
        cdef EntryC* start
        made = np.empty((room, 2), dtype=np.uint64)
        cdef uint64_t[:, ::1] out = made
        start = <EntryC*>&out[0, 0]
        while num + LARGEST <= room and self._refill():
            with nogil:
                _build_heap(&self._m)
                num += _merge(&self._m, start + num, room - num)
        if num + LARGEST <= room and self._m.total:
            num += _finish_pair(&self._m, start + num)
        return made[:num]

    cdef bint _refill(self) except -1:
        """Give every stream that ran dry its next entries; False when all have ended."""
        cdef Py_ssize_t i
        cdef bint some = False
        for i in range(self._m.num_streams):
            if self._m.streams[i].next == self._m.streams[i].end and not self._m.streams[i].ended:
                self._take(i, self._sources[i].read())
            some |= self._m.streams[i].next < self._m.streams[i].end
        return some

    cdef int _take(self, Py_ssize_t i, object entries) except -1:
        cdef const uint64_t[:, ::1] view = entries_view(entries)
        self._m.streams[i].ended = view.shape[0] == 0
        # An empty view would keep the array that it is cut from.
        self._held[i] = None if self._m.streams[i].ended else entries
        if view.shape[0]:
            self._m.streams[i].next = <const EntryC*>&view[0, 0]
            self._m.streams[i].end = self._m.streams[i].next + view.shape[0]
        return 0


cdef Py_ssize_t _sum_pair(const EntryC* e, Py_ssize_t n, uint64_t* total) noexcept nogil:
    """Add up the entries of the first pair; return how many they are."""
    cdef Py_ssize_t i = 0
    total[0] = 0
    while i < n and same_pair(&e[i], &e[0]):
        total[0] += <uint64_t>entry_count(&e[i])
        i += 1
    return i


cdef Py_ssize_t _subtract(const EntryC* a, Py_ssize_t n, const EntryC* b, Py_ssize_t m, EntryC* out) noexcept nogil:
    cdef uint64_t more, less
    cdef Py_ssize_t num = 0
    cdef Py_ssize_t taken
    cdef EntryC pair
    while n > 0:
        pair = a[0]
        taken = _sum_pair(a, n, &more)
        a += taken
        n -= taken
        while m > 0 and entry_less(b, &pair):
            b += 1
            m -= 1
        taken = 0
        less = 0
        if m > 0 and same_pair(b, &pair):
            taken = _sum_pair(b, m, &less)
        b += taken
        m -= taken
        more = more - less if more > less else 0
        while more > 0:
            out[num] = pair
            out[num].b = (pair.b & ~<uint64_t>ENTRY_COUNT_MAX) | (more if more < ENTRY_COUNT_MAX else ENTRY_COUNT_MAX)
            more -= out[num].b & ENTRY_COUNT_MAX
            num += 1
    return num


def entries_beyond(entries, known):
    """Return by how much counts exceed known ones, for pairs where they do.

    Args:
        entries, known: uint64, shape (n, 2), ascending.

    Returns:
        uint64, shape (m, 2), ascending. A new array.

    Raises:
        InputError: An array has another shape or dtype.

    Cost: O(n). Threads: releases the GIL.
    """
    cdef const uint64_t[:, ::1] a = entries_view(entries)
    cdef const uint64_t[:, ::1] b = entries_view(known)
    cdef const EntryC* old = NULL
    made = np.empty((a.shape[0] + 1, 2), dtype=np.uint64)
    cdef uint64_t[:, ::1] out = made
    cdef Py_ssize_t num = 0
    if b.shape[0]:
        old = <const EntryC*>&b[0, 0]
    if a.shape[0]:
        with nogil:
            num = _subtract(<const EntryC*>&a[0, 0], a.shape[0], old, b.shape[0], <EntryC*>&out[0, 0])
    return made[:num]
