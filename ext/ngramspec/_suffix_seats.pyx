"""Seats: which occurrences of a context a static suffix index keeps.

Its followers get SAME seats by how often they came (D'Hondt), each for its latest occurrences. A
line that has no room for all of its contexts loses their last seats first.
"""

from libc.stdlib cimport qsort

from ngramspec._lines cimport LINE_WORDS, SAME
from ngramspec._types cimport uint64_t

cdef struct FollowerC:
    token_t token
    uint32_t count
    uint32_t last         # place of its latest occurrence
    uint32_t seats


cdef int _compare(const void* a, const void* b) noexcept nogil:
    """Order by context, follower, position."""
    cdef const OccurrenceC* x = <const OccurrenceC*>a
    cdef const OccurrenceC* y = <const OccurrenceC*>b
    if x.hash != y.hash:
        return -1 if x.hash < y.hash else 1
    if x.token != y.token:
        return -1 if x.token < y.token else 1
    return <int>(x.position > y.position) - <int>(x.position < y.position)


cdef int _compare_seats(const void* a, const void* b) noexcept nogil:
    cdef const SeatC* x = <const SeatC*>a
    cdef const SeatC* y = <const SeatC*>b
    if x.rank != y.rank:
        return -1 if x.rank < y.rank else 1
    return <int>(x.hash > y.hash) - <int>(x.hash < y.hash)


cdef int _most_frequent(const OccurrenceC* found, Py_ssize_t n, FollowerC* best) noexcept nogil:
    """Write the SAME most frequent followers of one context, sorted occurrences given; return how many."""
    cdef FollowerC one
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t i
    cdef int num = 0
    cdef int k
    for i in range(1, n + 1):
        if i < n and found[i].token == found[start].token:
            continue
        one = FollowerC(found[start].token, <uint32_t>(i - start), <uint32_t>(i - 1), 0)
        start = i
        k = num if num < SAME else SAME - 1
        if num == SAME and best[k].count >= one.count:
            continue
        while k > 0 and best[k - 1].count < one.count:
            best[k] = best[k - 1]
            k -= 1
        best[k] = one
        num = num + 1 if num < SAME else SAME
    return num


cdef int _seats(const OccurrenceC* found, Py_ssize_t n, SeatC* out) noexcept nogil:
    """Write which occurrences of one context are kept; return how many, at most SAME."""
    cdef FollowerC[SAME] best
    cdef int num = _most_frequent(found, n, best)
    cdef int rank, k, next
    for rank in range(SAME if n > SAME else <int>n):
        next = -1
        for k in range(num):
            if best[k].seats < best[k].count and (next < 0 or <uint64_t>best[k].count * (best[next].seats + 1)
                                                  > <uint64_t>best[next].count * (best[k].seats + 1)):
                next = k
        out[rank] = SeatC(rank, found[0].hash, found[best[next].last - best[next].seats].position)
        best[next].seats += 1
    return SAME if n > SAME else <int>n


cdef Py_ssize_t fill_line(OccurrenceC* found, Py_ssize_t n, SeatC* seats, uint32_t tag_mask,
                          uint32_t* line) noexcept nogil:
    """Let contexts of a line keep their best occurrences, as far as there is room."""
    cdef Py_ssize_t num = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t i
    qsort(found, <size_t>n, sizeof(OccurrenceC), _compare)
    for i in range(1, n + 1):
        if i == n or found[i].hash != found[start].hash:
            num += _seats(found + start, i - start, seats + num)
            start = i
    if line != NULL:
        qsort(seats, <size_t>num, sizeof(SeatC), _compare_seats)
        for i in range(num if num < LINE_WORDS else LINE_WORDS):
            line[i] = (<uint32_t>seats[i].hash & tag_mask) | (seats[i].position + 1)
    return num
