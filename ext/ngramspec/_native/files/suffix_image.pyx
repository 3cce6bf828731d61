"""SuffixImage: make the lines of a static suffix index from the tokens of a corpus.

A context is kept only if the next shorter one was seen more than RARE times: otherwise it adds
nothing. A hash collision can inflate that count, which costs a word. The followers of a context share
SAME seats by frequency (D'Hondt), each for its latest occurrences. A line without room for all seats
drops the last seats of its contexts first. The result depends on the tokens alone, not on memory or
threads.
"""

cimport cython
from libc.stdlib cimport free, qsort

from ngramspec._native.core.types cimport hash_t, int64_t, ngs_alloc, ngs_zeroed, token_t, uint32_t, uint64_t, uint8_t
from ngramspec._native.suffix.index cimport LINE_WORDS, NUM_ORDERS, SAME, context_hashes

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    MOST_COUNTER_BITS = 30
    RARE = 2              # occurrences up to which no longer context is kept
    RATED = 3             # order of the contexts that rate a text: 6 tokens
    SAMPLED = 1 << 22     # occurrences looked at to estimate how many lines are needed

# One occurrence of a context.
cdef struct OccurrenceC:
    hash_t hash
    uint32_t position
    token_t token         # the token that follows

# An occurrence that is kept.
cdef struct SeatC:
    int rank              # among those of its context, 0 = the first
    hash_t hash
    uint32_t position


cdef struct ImageFollowerC:
    token_t token
    uint32_t count
    uint32_t last         # place of its latest occurrence
    uint32_t seats

# Walks the tokens and yields the contexts of each.
cdef struct WalkC:
    const token_t* tokens
    Py_ssize_t num_tokens
    const uint8_t* seen   # count of the contexts of each hash, at most SAME + 1
    int shift
    Py_ssize_t at
    Py_ssize_t run        # tokens of the text before `at`


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


cdef int _most_frequent(const OccurrenceC* occurrences, Py_ssize_t n, ImageFollowerC* best) noexcept nogil:
    """Write the up to SAME most frequent followers in one context's sorted occurrences; return how many."""
    cdef ImageFollowerC one
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t i
    cdef int num = 0
    cdef int k
    for i in range(1, n + 1):
        if i < n and occurrences[i].token == occurrences[start].token:
            continue
        one = ImageFollowerC(occurrences[start].token, <uint32_t>(i - start), <uint32_t>(i - 1), 0)
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


cdef int _seats(const OccurrenceC* occurrences, Py_ssize_t n, SeatC* out) noexcept nogil:
    """Write the occurrences of one context to keep; return how many, at most SAME."""
    cdef ImageFollowerC[SAME] best
    cdef int num = _most_frequent(occurrences, n, best)
    cdef int rank, k, next
    for rank in range(SAME if n > SAME else <int>n):
        next = -1
        for k in range(num):
            if best[k].seats < best[k].count and (next < 0 or <uint64_t>best[k].count * (best[next].seats + 1)
                                                  > <uint64_t>best[next].count * (best[k].seats + 1)):
                next = k
        out[rank] = SeatC(rank, occurrences[0].hash, occurrences[best[next].last - best[next].seats].position)
        best[next].seats += 1
    return SAME if n > SAME else <int>n


cdef Py_ssize_t fill_line(OccurrenceC* occurrences, Py_ssize_t n, SeatC* seats, uint32_t tag_mask,
                          uint32_t* line) noexcept nogil:
    """Write the best occurrences of a line's contexts while there is room; return how many there are."""
    cdef Py_ssize_t num = 0
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t i
    qsort(occurrences, <size_t>n, sizeof(OccurrenceC), _compare)
    for i in range(1, n + 1):
        if i == n or occurrences[i].hash != occurrences[start].hash:
            num += _seats(occurrences + start, i - start, seats + num)
            start = i
    if line != NULL:
        qsort(seats, <size_t>num, sizeof(SeatC), _compare_seats)
        for i in range(num if num < LINE_WORDS else LINE_WORDS):
            line[i] = (<uint32_t>seats[i].hash & tag_mask) | (seats[i].position + 1)
    return num


cdef inline uint64_t _line_of(hash_t h, uint64_t num_lines) noexcept nogil:
    return ((h >> 32) * num_lines) >> 32


cdef int _walk(WalkC* w, hash_t* hashes) noexcept nogil:
    """Write the hashes of the contexts before the next token; return their number, -1 at the end."""
    cdef int num
    while w.at < w.num_tokens and w.tokens[w.at] < 0:
        w.run = 0
        w.at += 1
    if w.at >= w.num_tokens:
        return -1
    num = context_hashes(w.tokens + w.at, w.run, hashes)
    w.run += 1
    w.at += 1
    return num


cdef int _useful(const WalkC* w, const hash_t* hashes, int num) noexcept nogil:
    """Return how many of the contexts, shortest first, are worth keeping."""
    cdef int k = 1
    while k < num and w.seen[hashes[k - 1] >> w.shift] > RARE:
        k += 1
    return k if num > 0 else 0


@cython.final
cdef class SuffixImage:
    """SuffixImage(tokens): make the lines of an index of these tokens, a part at a time.

    Args:
        tokens: int32, shape (n,), C-contiguous, 1 <= n < 2**29 - 1: texts, each followed by -1. Viewed:
            it stays alive and cannot be resized.

    Raises:
        InputError: tokens has another shape or dtype, too many or no tokens.
        MemoryError: No room for 2 to 4 bytes per token, 1 GiB at most.

    Cost: O(tokens). Thread-safety: one thread at a time.
    """

    cdef WalkC _start
    cdef const token_t[::1] _tokens  # _start points into them; the view keeps their array in place
    cdef uint8_t* _seen
    cdef readonly int position_bits
    cdef readonly Py_ssize_t num_texts
    cdef readonly Py_ssize_t num_tokens
    cdef readonly int largest_token

    def __cinit__(self, tokens):
        cdef const token_t[::1] text
        cdef int bits = 10
        cdef Py_ssize_t i
        try:
            text = tokens
        except (ValueError, TypeError, BufferError) as error:
            raise InputError(f"tokens must be an int32 array of shape (n,), C-contiguous: {error}") from None
        if not 1 <= text.shape[0] < (1 << 29) - 1:
            raise InputError(f"an index holds 1 to {(1 << 29) - 2:,} tokens, got {text.shape[0]:,}")
        self.position_bits = max(25, (text.shape[0] + 1).bit_length())
        self._tokens = text
        while (<Py_ssize_t>1 << bits) < 2 * text.shape[0] and bits < MOST_COUNTER_BITS:
            bits += 1
        self._seen = <uint8_t*>ngs_zeroed(<size_t>1 << bits)
        if self._seen == NULL:
            raise MemoryError(f"no memory to count the contexts of {text.shape[0]} tokens")
        self._start = WalkC(tokens=&text[0], num_tokens=text.shape[0], seen=self._seen, shift=64 - bits, at=0, run=0)
        self.largest_token = -1
        with nogil:
            for i in range(text.shape[0]):
                self.num_texts += text[i] < 0
                self.largest_token = max(self.largest_token, text[i])
            self._count()
        self.num_tokens = text.shape[0] - self.num_texts

    def __dealloc__(self):
        free(self._seen)

    cdef void _count(self) noexcept nogil:
        """Count the contexts by hash."""
        cdef hash_t[NUM_ORDERS] hashes
        cdef WalkC w = self._start
        cdef uint8_t* cell
        cdef int num = _walk(&w, hashes)
        cdef int k
        while num >= 0:
            for k in range(num):
                cell = &self._seen[hashes[k] >> w.shift]
                cell[0] += cell[0] <= SAME
            num = _walk(&w, hashes)

    cdef void _places(self, uint64_t num_lines, uint64_t first, uint64_t stop, uint64_t* places) noexcept nogil:
        """Write where the occurrences of each line first..stop - 1 begin; places has one cell more than lines."""
        cdef hash_t[NUM_ORDERS] hashes
        cdef WalkC w = self._start
        cdef uint64_t line, i
        cdef int num, k
        num = _walk(&w, hashes)
        while num >= 0:
            for k in range(_useful(&w, hashes, num)):
                line = _line_of(hashes[k], num_lines)
                if first <= line < stop:
                    places[line - first + 1] += 1
            num = _walk(&w, hashes)
        for i in range(1, stop - first + 1):
            places[i] += places[i - 1]

    cdef void _scatter(self, uint64_t num_lines, uint64_t first, uint64_t stop, uint64_t* places,
                       OccurrenceC* out) noexcept nogil:
        """Write the occurrences by line; places then hold where each line's end."""
        cdef hash_t[NUM_ORDERS] hashes
        cdef WalkC w = self._start
        cdef uint64_t line
        cdef int num, k
        num = _walk(&w, hashes)
        while num >= 0:
            for k in range(_useful(&w, hashes, num)):
                line = _line_of(hashes[k], num_lines)
                if first <= line < stop:
                    out[places[line - first]] = OccurrenceC(hashes[k], <uint32_t>(w.at - 1), w.tokens[w.at - 1])
                    places[line - first] += 1
            num = _walk(&w, hashes)

    cdef Py_ssize_t _fill(self, uint64_t num_lines, uint64_t first, uint64_t stop, uint32_t* lines) except -1:
        """Fill lines, or only count if NULL; return how many words they would need."""
        cdef uint64_t* places = <uint64_t*>ngs_zeroed((stop - first + 1) * sizeof(uint64_t))
        cdef OccurrenceC* occurrences = NULL
        cdef SeatC* seats = NULL
        cdef uint64_t start = 0, most = 0
        cdef uint32_t tag_mask = ~(<uint32_t>0) << self.position_bits
        cdef Py_ssize_t total = 0
        cdef uint64_t i
        if places != NULL:
            with nogil:
                self._places(num_lines, first, stop, places)
                for i in range(stop - first):
                    most = max(most, places[i + 1] - places[i])
                occurrences = <OccurrenceC*>ngs_alloc((places[stop - first] + 1) * sizeof(OccurrenceC))
                seats = <SeatC*>ngs_alloc((most + 1) * sizeof(SeatC))
                if occurrences != NULL and seats != NULL:
                    self._scatter(num_lines, first, stop, places, occurrences)
                    for i in range(stop - first):
                        total += fill_line(occurrences + start, <Py_ssize_t>(places[i] - start), seats, tag_mask,
                                           lines + i * LINE_WORDS if lines != NULL else NULL)
                        start = places[i]
        missing = places == NULL or occurrences == NULL or seats == NULL
        free(places)
        free(occurrences)
        free(seats)
        if missing:
            raise MemoryError(f"no memory for lines {first}..{stop} of an index")
        return total

    def num_words(self):
        """Return how many positions there are to keep: exact below 2**22 tokens, else an estimate. O(tokens)."""
        cdef Py_ssize_t parts = 1 + self._start.num_tokens // SAMPLED
        return parts * self._fill(<uint64_t>parts, 0, 1, NULL)

    def repeats(self, Py_ssize_t window):
        """Return how often the contexts in each stretch of the tokens were seen, a measure of its use.

        Args:
            window: Length of a stretch in tokens, borders included, >= 1.

        Returns:
            int64, shape (ceil(n / window),): per stretch, the sum over its tokens of how often the 6 tokens
            before each were seen, 0..5. A new array.

        Raises:
            InputError: window is below 1.

        Cost: O(tokens).
        """
        cdef hash_t[NUM_ORDERS] hashes
        cdef WalkC w = self._start
        cdef int64_t[::1] sums
        cdef int num
        if window < 1:
            raise InputError(f"window must be at least 1, got {window}")
        totals = np.zeros((w.num_tokens + window - 1) // window, np.int64)
        sums = totals
        with nogil:
            num = _walk(&w, hashes)
            while num >= 0:
                if num > RATED:
                    sums[(w.at - 1) // window] += w.seen[hashes[RATED] >> w.shift]
                num = _walk(&w, hashes)
        return totals

    def lines(self, uint64_t num_lines, uint64_t first, uint64_t stop):
        """Return lines first..stop - 1 of an index of num_lines lines.

        Args:
            num_lines: 1..2**32 - 1.
            first, stop: The lines to return, first <= stop <= num_lines.

        Returns:
            uint32, shape (stop - first, 16). A new array.

        Raises:
            InputError: A number is out of its bounds.
            MemoryError: No room for 16 bytes per occurrence in these lines; all lines together have 1 to 5
                occurrences per token.

        Cost: O(tokens), and O(n log n) to sort the n occurrences in these lines. Threads: releases the GIL.
        """
        cdef uint32_t[:, ::1] cells
        if not 1 <= num_lines < <uint64_t>1 << 32 or not first <= stop <= num_lines:
            raise InputError(f"expected first <= stop <= num_lines < 2**32, got {first}, {stop} and {num_lines}")
        lines = np.zeros((stop - first, LINE_WORDS), np.uint32)
        if stop > first:
            cells = lines
            self._fill(num_lines, first, stop, &cells[0, 0])
        return lines
