"""The sections of a statistics file, made from sorted entries: ImageWriter and IndexWriter."""

cimport cython
from libc.string cimport memcpy

from ngramspec._arguments cimport entries_view
from ngramspec._history cimport grow
from ngramspec._memory cimport ngs_release
from ngramspec._packing cimport (
    OLDEST_SHIFT, PACKED_MAX, EntryC, entry_count, entry_follower, key_tokens, same_ngram,
)
from ngramspec._static cimport (
    LIST_HEAD, MANY_SHIFT, SHORT_MANY_SHIFT, record_a, record_words,
)
from ngramspec._types cimport COUNT_MAX, STATUS_NO_MEMORY, STATUS_OK, Status, token_t, uint32_t, uint64_t

import numpy as np

from ngramspec.errors import CapacityError, InputError

cdef enum:
    RECORDS_PER_BUCKET = 4

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
    """Where so many words may be written, NULL without memory."""
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
    cdef token_t[PACKED_MAX] tokens
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
    """The words as a new array; none are left."""
    taken = np.empty(w.len, dtype=np.uint32)
    cdef uint32_t[::1] view = taken
    if w.len:
        memcpy(&view[0], w.words, <size_t>w.len * sizeof(uint32_t))
    w.len = 0
    return taken


@cython.final
cdef class ImageWriter:
    """ImageWriter(size): turns sorted entries of one n-gram size into records and follower lists.

    Args:
        size: Tokens per n-gram, 1..4.

    Raises:
        InputError: size is out of its bounds.

    Thread-safety: one thread at a time.
    """

    cdef ImageC _m

    def __cinit__(self, Py_ssize_t size):
        if not 1 <= size <= PACKED_MAX:
            raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
        self._m.size = size

    def __dealloc__(self):
        _release(&self._m.records)
        _release(&self._m.followers)
        _release(&self._m.pairs)

    @property
    def num_ngrams(self):
        """Return the number of n-grams finished."""
        return self._m.num_ngrams

    @property
    def num_pairs(self):
        """Return the number of pairs of an n-gram and a follower among them."""
        return self._m.num_pairs

    @property
    def largest_token(self):
        """Return the largest token id among them, of n-grams and followers."""
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
        """Return records and followers made since the last call: two uint32 arrays, new."""
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
    """IndexWriter(size, num_ngrams): makes the index of records given in their order.

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
        if not 1 <= size <= PACKED_MAX:
            raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
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
        """Return the index, uint32 of shape (2**k + 1,); the writer is used up."""
        while self._bucket < self._index.shape[0]:
            self._index[self._bucket] = <uint32_t>self._seen
            self._bucket += 1
        return np.asarray(self._index)
