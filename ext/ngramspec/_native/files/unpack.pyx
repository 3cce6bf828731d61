"""EntryReader: the n-grams of a StaticCache as sorted entries again, each checked on the way."""

cimport cython

from ngramspec._native.cache.static cimport (
    LIST_HEAD, MANY_SHIFT, SHORT_MANY_SHIFT, SectionsC, StaticC, StaticCache, record_a, record_words,
)
from ngramspec._native.core.arguments cimport entries_view
from ngramspec._native.core.packing cimport (
    ENTRY_COUNT_MAX, OLDEST_SHIFT, PACKED_MAX, STORED_TOKEN_MAX, EntryC, KeyC, entry_count, entry_follower,
    entry_of, key_mask, key_tokens,
)
from ngramspec._native.core.types cimport COUNT_MAX, int32_t, ngs_load32, token_t, uint32_t, uint64_t

import numpy as np

from ngramspec.errors import FormatError, InputError

cdef enum:
    LARGEST = (COUNT_MAX // ENTRY_COUNT_MAX) + 1   # entries that one pair can need

# A record taken apart.
cdef struct RecordC:
    KeyC key
    bint many
    uint32_t best
    uint32_t count            # or the place of the list

cdef struct ReaderC:
    const StaticC* cache
    const SectionsC* sections
    Py_ssize_t size
    Py_ssize_t record         # next one
    RecordC parts             # of it, once its list has begun
    Py_ssize_t place          # where the next list must lie
    Py_ssize_t pair           # next pair of the record's list
    Py_ssize_t num_pairs      # of the record's list
    uint32_t follower         # of the pair before
    uint64_t total            # of the list so far
    uint32_t best_count       # of the list so far
    uint32_t best
    const unsigned char* keep  # per record: 0 = leave out; NULL = all


# A mapped file may change while it is read, so each word is read once and what was checked is kept.
cdef RecordC _parts(const uint32_t* r, Py_ssize_t size) noexcept nogil:
    cdef RecordC parts
    parts.key.a = record_a(r) & key_mask(size)
    parts.key.oldest = r[2] if size > 3 else 0
    if size < 3:
        parts.many = r[0] >> SHORT_MANY_SHIFT & 1
        parts.best = r[0] & STORED_TOKEN_MAX
    else:
        parts.many = r[size - 1] >> MANY_SHIFT
        parts.best = r[size - 1] & ~(<uint32_t>1 << MANY_SHIFT)
    parts.count = ngs_load32(&r[record_words(size) - 1])
    return parts


cdef const char* _bad_record(ReaderC* x, const uint32_t* r, const RecordC* parts) noexcept nogil:
    """What is wrong with a record and the head of its list, NULL when nothing is; x.num_pairs is set."""
    cdef token_t[PACKED_MAX] tokens
    cdef RecordC before
    cdef Py_ssize_t i
    if parts.key.oldest > STORED_TOKEN_MAX:
        return "expected a token id"
    key_tokens(parts.key.a, parts.key.oldest, x.size, tokens)
    for i in range(x.size):
        if tokens[i] >= x.cache.vocab_size:
            return "expected token ids below the vocabulary's size"
    if parts.best >= <uint32_t>x.cache.vocab_size:
        return "expected a follower below the vocabulary's size"
    if x.record > 0:
        before = _parts(r - record_words(x.size), x.size)
        if before.key.a > parts.key.a or (before.key.a == parts.key.a and before.key.oldest >= parts.key.oldest):
            return "expected a record that sorts behind the one before"
    if not parts.many:
        if parts.count == 0 or parts.count > COUNT_MAX:
            return "expected a count in 1..2147483647"
        return NULL
    if parts.count != x.place:
        return "expected the place behind the list before"
    if x.place + LIST_HEAD > x.sections.followers_len:
        return "expected a place within the followers section"
    x.num_pairs = ngs_load32(&x.sections.followers[x.place])
    if x.num_pairs < 2:
        return "expected a list of 2 followers or more"
    if x.num_pairs > (x.sections.followers_len - x.place - LIST_HEAD) >> 1:
        return "expected a list within the followers section"
    return NULL


cdef const char* _bad_pair(const ReaderC* x, uint32_t follower, uint32_t count) noexcept nogil:
    if follower >= <uint32_t>x.cache.vocab_size:
        return "expected a follower below the vocabulary's size"
    if count == 0 or count > COUNT_MAX:
        return "expected a follower's count in 1..2147483647"
    if x.pair > 0 and x.follower >= follower:
        return "expected followers that ascend"
    return NULL


cdef const char* _bad_list(const ReaderC* x) noexcept nogil:
    """What is wrong with the head of a list whose pairs have been read."""
    cdef const uint32_t* head = x.sections.followers + x.place
    if head[1] != (x.total if x.total < COUNT_MAX else COUNT_MAX):
        return "expected the total of the followers' counts"
    if head[2] != x.best_count or x.parts.best != x.best:
        return "expected the most frequent follower"
    return NULL


cdef Py_ssize_t _put(EntryC* out, KeyC key, uint32_t token, uint32_t count) noexcept nogil:
    cdef Py_ssize_t num = 0
    while count > 0:
        out[num] = entry_of(key, <token_t>token, count if count < ENTRY_COUNT_MAX else ENTRY_COUNT_MAX)
        count -= count if count < ENTRY_COUNT_MAX else ENTRY_COUNT_MAX
        num += 1
    return num


cdef Py_ssize_t _read(ReaderC* x, EntryC* out, Py_ssize_t room, const char** broken) noexcept nogil:
    """Write entries until less than LARGEST have room, all are written or something is broken."""
    cdef Py_ssize_t num = 0
    cdef const uint32_t* r
    cdef const uint32_t* pair
    cdef uint32_t follower, count
    cdef bint kept
    while num + LARGEST <= room and x.record < x.sections.num_ngrams:
        if x.pair == 0:
            r = x.sections.records + x.record * record_words(x.size)
            x.parts = _parts(r, x.size)
            broken[0] = _bad_record(x, r, &x.parts)
            if broken[0] != NULL:
                return num
            x.total = x.best_count = 0
        kept = x.keep == NULL or x.keep[x.record] != 0
        if not x.parts.many:
            num += _put(out + num, x.parts.key, x.parts.best, x.parts.count) if kept else 0
            x.record += 1
            continue
        pair = x.sections.followers + x.place + LIST_HEAD + 2 * x.pair
        follower = ngs_load32(&pair[0])
        count = ngs_load32(&pair[1])
        broken[0] = _bad_pair(x, follower, count)
        if broken[0] != NULL:
            return num
        num += _put(out + num, x.parts.key, follower, count) if kept else 0
        x.total += count
        if count > x.best_count:
            x.best_count = count
            x.best = follower
        x.follower = follower
        x.pair += 1
        if x.pair == x.num_pairs:
            broken[0] = _bad_list(x)
            if broken[0] != NULL:
                return num
            x.place += LIST_HEAD + 2 * x.pair
            x.record += 1
            x.pair = 0
    return num


@cython.final
cdef class EntryReader:
    """EntryReader(cache, size, keep=None): reads all n-grams of a size as packed entries, in the order of the file.

    Args:
        cache: The StaticCache, kept alive.
        size: Tokens per n-gram, 1..4; a size that is not there has no entries.
        keep: Which n-grams, in the order of the file: uint8, shape (n-grams of the size,); None = all.

    Raises:
        InputError: size is out of its bounds, or keep has another shape.

    Thread-safety: one thread at a time.
    """

    cdef ReaderC _x
    cdef StaticCache _cache
    cdef object _keep

    def __cinit__(self, StaticCache cache not None, Py_ssize_t size, keep=None):
        cdef const unsigned char[::1] view
        if not 1 <= size <= PACKED_MAX:
            raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
        self._cache = cache
        self._x.cache = &cache.c
        self._x.sections = &cache.c.sizes[size]
        self._x.size = size
        if keep is not None:
            view = keep
            if view.shape[0] != self._x.sections.num_ngrams:
                raise InputError(f"keep must tell of {self._x.sections.num_ngrams} n-grams, got {view.shape[0]}")
            self._keep = keep
            self._x.keep = &view[0] if view.shape[0] else NULL

    def read(self, Py_ssize_t max_entries=65536):
        """Return the next entries, at most max_entries (1024 at least); empty at the end.

        Returns:
            uint64, shape (n, 2), ascending. A new array.

        Raises:
            FormatError: A record or list cannot be right; names file, offset and what was expected.

        Cost: O(n). Threads: releases the GIL.
        """
        cdef Py_ssize_t room = max_entries if max_entries > 1024 else 1024
        cdef Py_ssize_t num
        cdef const char* broken = NULL
        made = np.empty((room, 2), dtype=np.uint64)
        cdef uint64_t[:, ::1] out = made
        with nogil:
            num = _read(&self._x, <EntryC*>&out[0, 0], room, &broken)
        if broken != NULL:
            raise FormatError(self._place_of() + broken.decode())
        if num == 0 and self._x.record == self._x.sections.num_ngrams and self._x.place != self._x.sections.followers_len:
            raise FormatError(f"{self._cache.name}: followers of {self._x.size}-grams: expected no words "
                              f"behind the last list, found {self._x.sections.followers_len - self._x.place}")
        return made[:num]

    def check_index(self, index):
        """Raise FormatError unless the cache's index equals `index`, made anew from its records."""
        views = self._cache.sections(self._x.size)
        if views is not None and len(views[2]) != len(index):
            raise FormatError(f"{self._cache.name}: index of {self._x.size}-grams: expected {len(index)} words, "
                              f"found {len(views[2])}")
        wrong = np.flatnonzero(np.asarray(views[2]) != index) if views is not None else ()
        if len(wrong):
            raise FormatError(f"{self._cache.name}: index of {self._x.size}-grams: word {wrong[0]} does not fit the records")

    cdef str _place_of(self):
        offsets = self._cache.offsets.get(self._x.size, (0, 0))
        at = offsets[0] + 4 * self._x.record * record_words(self._x.size)
        return f"{self._cache.name}: {self._x.size}-gram record at offset {at}: "


def tokens_of(entries, Py_ssize_t size):
    """Return what packed entries stand for.

    Args:
        entries: uint64, shape (n, 2).
        size: Tokens per n-gram, 1..4.

    Returns:
        int32, shape (n, size + 2): the n-gram, oldest first, the follower, the count.

    Raises:
        InputError: size is out of its bounds, or entries has another shape or dtype.
    """
    cdef const uint64_t[:, ::1] view = entries_view(entries)
    cdef const EntryC* e
    cdef Py_ssize_t i
    if not 1 <= size <= PACKED_MAX:
        raise InputError(f"size must be in 1..{PACKED_MAX}, got {size}")
    made = np.empty((len(entries), size + 2), dtype=np.int32)
    cdef int32_t[:, ::1] out = made
    for i in range(view.shape[0]):
        e = <const EntryC*>&view[i, 0]
        key_tokens(e.a, e.b >> OLDEST_SHIFT, size, &out[i, 0])
        out[i, size] = entry_follower(e)
        out[i, size + 1] = entry_count(e)
    return made
