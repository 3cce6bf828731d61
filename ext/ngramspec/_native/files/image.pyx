"""ImageWriter, IndexWriter and PoolImage: make the sections of a statistics file from sorted entries.

useful_ngrams picks what a smaller file keeps. The value of an n-gram is how often its draft was right
in the corpus. If the next shorter n-gram drafts the same token, or the n-gram cannot draft by itself,
it only re-weights and is worth 1/64 of that. All in integers, so that every machine keeps the same n-grams. The cells of
a hash pool are independent of the order of the texts, too.
"""

cimport cython
from libc.string cimport memcpy

from ngramspec._native.cache.static cimport (
    LIST_HEAD, MANY_SHIFT, SHORT_MANY_SHIFT, FollowersC, SectionsC, StaticC, StaticCache, record_a, record_words,
    static_find,
)
from ngramspec._native.core.arguments cimport entries_view
from ngramspec._native.core.memory cimport grow
from ngramspec._native.core.packing cimport (
    OLDEST_SHIFT, EntryC, entry_count, entry_follower, key_mask, key_tokens, same_ngram, same_pair,
)
from ngramspec._native.core.types cimport (
    COUNT_MAX, NGRAM_MAX, STATUS_NO_MEMORY, STATUS_OK, Status, int64_t, ngs_release, token_t, uint32_t, uint64_t,
)
from ngramspec._native.mod.cell cimport CHECK_POSITION, CONFIDENCE_ONE, MAX_CONFIDENCE

import numpy as np

from ngramspec.errors import CapacityError, InputError

cdef enum:
    RECORDS_PER_BUCKET = 4
    NUM_CLASSES = 2048
    MANTISSA_BITS = 5
    INDEX_BYTES = 2       # most bytes of the index per n-gram
    MIN_SAMPLE = 2        # ngram-cache's defaults for static counts
    MIN_PERCENT = 50
    WHOLE = 64            # worth of a right draft; 1 if the draft changes nothing

cdef struct WordsC:
    uint32_t* words
    Py_ssize_t len
    Py_ssize_t capacity


cdef struct ImageC:
    Py_ssize_t size           # tokens per n-gram
    WordsC records
    WordsC followers
    Py_ssize_t followers_before  # words of the section that were already taken
    EntryC ngram              # n-gram in the making
    WordsC pairs              # its followers: token, count
    Py_ssize_t num_ngrams
    Py_ssize_t num_pairs
    uint32_t largest_token


cdef inline uint32_t* _room(WordsC* w, Py_ssize_t words) noexcept nogil:
    """Return where to write the next words; NULL without memory."""
    if grow(<void**>&w.words, &w.capacity, w.len + words, sizeof(uint32_t)) != STATUS_OK:
        return NULL
    w.len += words
    return w.words + w.len - words


cdef void _release(WordsC* w) noexcept nogil:
    ngs_release(w.words, <size_t>w.capacity * sizeof(uint32_t))


cdef bint _append_list(ImageC* m, uint32_t total, uint32_t best_count) noexcept nogil:
    cdef uint32_t* out = _room(&m.followers, LIST_HEAD + m.pairs.len)
    if out == NULL:
        return False
    out[0] = <uint32_t>(m.pairs.len >> 1)
    out[1] = total
    out[2] = best_count
    memcpy(out + LIST_HEAD, m.pairs.words, <size_t>m.pairs.len * sizeof(uint32_t))
    return True


cdef bint _finish_ngram(ImageC* m) noexcept nogil:
    """Append the n-gram in the making; False without memory."""
    cdef Py_ssize_t words = record_words(m.size)
    cdef Py_ssize_t place = m.followers_before + m.followers.len
    cdef uint32_t* r
    cdef uint64_t total = 0, a = m.ngram.a
    cdef uint32_t best = 0, best_count = 0, many = m.pairs.len > 2
    cdef token_t[NGRAM_MAX] tokens
    cdef Py_ssize_t i
    key_tokens(a, m.ngram.b >> OLDEST_SHIFT, m.size, tokens)
    for i in range(m.size):
        if <uint32_t>tokens[i] > m.largest_token:
            m.largest_token = <uint32_t>tokens[i]
    for i in range(0, m.pairs.len, 2):
        total += m.pairs.words[i + 1]
        if m.pairs.words[i + 1] > best_count:
            best = m.pairs.words[i]
            best_count = m.pairs.words[i + 1]
        if m.pairs.words[i] > m.largest_token:
            m.largest_token = m.pairs.words[i]
    if many and not _append_list(m, <uint32_t>(total if total < COUNT_MAX else COUNT_MAX), best_count):
        return False
    r = _room(&m.records, words)
    if r == NULL:
        return False
    if m.size < 3:
        a |= many << SHORT_MANY_SHIFT | best
    else:
        r[m.size - 1] = many << MANY_SHIFT | best
    if m.size > 3:
        r[2] = <uint32_t>(m.ngram.b >> OLDEST_SHIFT)
    r[0] = <uint32_t>a
    r[1] = <uint32_t>(a >> 32)
    r[words - 1] = <uint32_t>place if many else best_count
    m.num_ngrams += 1
    m.num_pairs += m.pairs.len >> 1
    m.pairs.len = 0
    return True


cdef Status _feed(ImageC* m, const EntryC* e, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t* pair
    cdef uint32_t count
    for i in range(n):
        if m.pairs.len and not same_ngram(&m.ngram, &e[i]) and not _finish_ngram(m):
            return STATUS_NO_MEMORY
        if m.pairs.len == 0:
            m.ngram = e[i]
        count = <uint32_t>entry_count(&e[i])
        if m.pairs.len and m.pairs.words[m.pairs.len - 2] == <uint32_t>entry_follower(&e[i]):
            pair = m.pairs.words + m.pairs.len - 2
            pair[1] = pair[1] + count if pair[1] + count <= COUNT_MAX else COUNT_MAX
            continue
        pair = _room(&m.pairs, 2)
        if pair == NULL:
            return STATUS_NO_MEMORY
        pair[0] = <uint32_t>entry_follower(&e[i])
        pair[1] = count
    return STATUS_OK


cdef object _taken(WordsC* w):
    """Return the words as a new array and empty the list."""
    taken = np.empty(w.len, dtype=np.uint32)
    cdef uint32_t[::1] view = taken
    if w.len:
        memcpy(&view[0], w.words, <size_t>w.len * sizeof(uint32_t))
    w.len = 0
    return taken


@cython.final
cdef class ImageWriter:
    """ImageWriter(size): turn sorted entries of one n-gram size into records and follower lists.

    Args:
        size: Tokens per n-gram, 1..4.

    Raises:
        InputError: size is out of its bounds.

    Thread-safety: one thread at a time.
    """

    cdef ImageC _m

    def __cinit__(self, Py_ssize_t size):
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
        self._m.size = size

    def __dealloc__(self):
        _release(&self._m.records)
        _release(&self._m.followers)
        _release(&self._m.pairs)

    @property
    def num_ngrams(self):
        """Return the number of finished n-grams."""
        return self._m.num_ngrams

    @property
    def num_pairs(self):
        """Return the number of pairs of n-gram and follower in the finished n-grams."""
        return self._m.num_pairs

    @property
    def largest_token(self):
        """Return the largest token id in the finished n-grams and their followers."""
        return self._m.largest_token

    def feed(self, entries):
        """Take the next entries.

        Args:
            entries: uint64, shape (n, 2), ascending, within and across calls. Not kept.

        Raises:
            InputError: entries has another shape or dtype.
            CapacityError: More n-grams or followers than a file can hold.
            MemoryError: No room.

        Cost: O(n). Threads: releases the GIL.
        """
        cdef const uint64_t[:, ::1] view = entries_view(entries)
        cdef Py_ssize_t n = view.shape[0]
        cdef Status status
        if n:
            with nogil:
                status = _feed(&self._m, <const EntryC*>&view[0, 0], n)
            self._raise_for(status)

    def finish(self):
        """Finish the last n-gram.

        Raises:
            CapacityError, MemoryError: As feed.
        """
        self._raise_for(STATUS_OK if self._m.pairs.len == 0 or _finish_ngram(&self._m) else STATUS_NO_MEMORY)

    def take(self):
        """Return the records and followers made since the last call: two new uint32 arrays."""
        self._m.followers_before += self._m.followers.len
        return _taken(&self._m.records), _taken(&self._m.followers)

    cdef int _raise_for(self, Status status) except -1:
        cdef Py_ssize_t most = <Py_ssize_t>1 << 32
        if status != STATUS_OK:
            raise MemoryError("no memory for the sections of a statistics file")
        if self._m.num_ngrams >= most or self._m.followers_before + self._m.followers.len >= most:
            raise CapacityError(f"more {self._m.size}-grams or followers than a file can hold: raise min_count")
        return 0


@cython.final
cdef class IndexWriter:
    """IndexWriter(size, num_ngrams): make the index of records, which are fed in file order.

    Args:
        size: Tokens per n-gram, 1..4.
        num_ngrams: Number of records to come, 0..2**32 - 1.

    Raises:
        InputError: size is out of its bounds.

    Thread-safety: one thread at a time.
    """

    cdef Py_ssize_t _size
    cdef Py_ssize_t _seen
    cdef Py_ssize_t _bucket     # buckets below it are done
    cdef int _shift
    cdef uint32_t[::1] _index

    def __cinit__(self, Py_ssize_t size, Py_ssize_t num_ngrams):
        cdef int bits = 0
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
        while bits < 21 * size and bits < 31 and num_ngrams >> bits > RECORDS_PER_BUCKET:
            bits += 1
        self._size = size
        self._shift = 64 - bits
        self._index = np.zeros((1 << bits) + 1, dtype=np.uint32)

    def feed(self, records):
        """Take the next whole records: uint32, shape (n,). O(n)."""
        cdef const uint32_t[::1] view = records
        cdef Py_ssize_t words = record_words(self._size)
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t bucket
        with nogil:
            while at + words <= view.shape[0]:
                bucket = <Py_ssize_t>(record_a(&view[at]) >> self._shift) if self._shift < 64 else 0
                while self._bucket <= bucket:
                    self._index[self._bucket] = <uint32_t>self._seen
                    self._bucket += 1
                self._seen += 1
                at += words

    def finish(self):
        """Return the index, uint32 of shape (2**k + 1,); call nothing after it."""
        while self._bucket < self._index.shape[0]:
            self._index[self._bucket] = <uint32_t>self._seen
            self._bucket += 1
        return np.asarray(self._index)


cdef Py_ssize_t _class_of(uint64_t value, uint64_t num_bytes) noexcept nogil:
    """Return a class that grows with value per byte: the leading bits of the quotient."""
    cdef uint64_t score = (value << 20) // num_bytes
    cdef Py_ssize_t exponent = 0
    while score >> MANTISSA_BITS >> exponent > 1:
        exponent += 1
    return (exponent << MANTISSA_BITS) + <Py_ssize_t>(score >> exponent)


cdef bint _drafts(const FollowersC* f) noexcept nogil:
    return f.total >= MIN_SAMPLE and 100 * <int64_t>f.best_count >= MIN_PERCENT * <int64_t>f.total


cdef Py_ssize_t _measure(const StaticC* c, Py_ssize_t size, Py_ssize_t record, uint64_t* num_bytes) noexcept nogil:
    """Return the class of a record; num_bytes: the size of it, its list and its share of the index."""
    cdef const SectionsC* s = &c.sizes[size]
    cdef const uint32_t* r = s.records + record * record_words(size)
    cdef token_t[NGRAM_MAX] tokens
    cdef FollowersC own, shorter
    cdef uint64_t worth = 1
    key_tokens(record_a(r) & key_mask(size), r[2] if size > 3 else 0, size, tokens)
    num_bytes[0] = 4 * record_words(size) + INDEX_BYTES
    if not static_find(c, &tokens[size - 1], size, &own):
        return 0
    if own.pairs != NULL:
        num_bytes[0] += 4 * (LIST_HEAD + 2 * own.num)
    if _drafts(&own):
        worth = WHOLE
        if size > 1 and static_find(c, &tokens[size - 1], size - 1, &shorter):
            if shorter.best == own.best and _drafts(&shorter):
                worth = 1
    return _class_of(<uint64_t>own.best_count * worth, num_bytes[0])


def usefulness(StaticCache cache not None, Py_ssize_t size):
    """Return how many n-grams of a size are in each usefulness class, and their bytes.

    Args:
        cache: The statistics.
        size: Tokens per n-gram, 1..4.

    Returns:
        Two new arrays, int64, shape (2048,): n-grams and bytes per class, the least useful first.

    Raises:
        InputError: size is out of its bounds.

    Cost: O(n-grams), one or two lookups each. Threads: releases the GIL.
    """
    cdef Py_ssize_t i, cls
    cdef uint64_t num_bytes = 0
    if not 1 <= size <= NGRAM_MAX:
        raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
    numbers, sums = np.zeros(NUM_CLASSES, dtype=np.int64), np.zeros(NUM_CLASSES, dtype=np.int64)
    cdef int64_t[::1] number_view = numbers
    cdef int64_t[::1] sum_view = sums
    with nogil:
        for i in range(cache.c.sizes[size].num_ngrams):
            cls = _measure(&cache.c, size, i, &num_bytes)
            number_view[cls] += 1
            sum_view[cls] += <int64_t>num_bytes
    return numbers, sums


def useful_ngrams(StaticCache cache not None, Py_ssize_t size, Py_ssize_t least, int64_t max_ngrams, int64_t max_bytes):
    """Return which n-grams of a size to keep.

    Args:
        cache: The statistics.
        size: Tokens per n-gram, 1..4.
        least: Class above which all are kept.
        max_ngrams, max_bytes: Limits for what is kept of class `least`, first in the file first.

    Returns:
        uint8, shape (n-grams of the size,): 1 = keep, in file order, a new array; then the number and the
        bytes of the n-grams kept of class `least`.

    Raises:
        InputError: size is out of its bounds.

    Cost: as usefulness. Threads: releases the GIL.
    """
    cdef Py_ssize_t i, cls
    cdef uint64_t num_bytes = 0
    cdef int64_t num_kept = 0, kept_bytes = 0
    if not 1 <= size <= NGRAM_MAX:
        raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
    flags = np.zeros(cache.c.sizes[size].num_ngrams, dtype=np.uint8)
    cdef unsigned char[::1] keep = flags
    with nogil:
        for i in range(keep.shape[0]):
            cls = _measure(&cache.c, size, i, &num_bytes)
            if cls > least:
                keep[i] = 1
            elif cls == least and num_kept < max_ngrams and kept_bytes + <int64_t>num_bytes <= max_bytes:
                keep[i] = 1
                num_kept += 1
                kept_bytes += <int64_t>num_bytes
    return flags, num_kept, kept_bytes


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
