"""Sorted entries: Tally counts those of tokens, EntryMerger merges streams of them, EntryReader reads a StaticCache's."""

cimport cython
from libc.string cimport memcpy, memset

from ngramspec._native.cache.static cimport (
    LIST_HEAD, MANY_SHIFT, SHORT_MANY_SHIFT, SectionsC, StaticC, StaticCache, record_a, record_words,
)
from ngramspec._native.core.arguments cimport entries_view, token_view
from ngramspec._native.core.hash cimport LCG, hash_power, hash_step
from ngramspec._native.core.memory cimport Owner, grow
from ngramspec._native.core.packing cimport (
    ENTRY_COUNT_MAX, FOLLOWER_SHIFT, MAX_PART_BITS, OLDEST_SHIFT, STORED_TOKEN_MAX, EntryC, KeyC, entry_count,
    entry_follower, entry_less, entry_of, item_t, key_mask, key_of, key_tokens, part_bits, same_pair, sort_parts,
    sum_equal,
)
from ngramspec._native.core.types cimport (
    COUNT_MAX, NGRAM_MAX, STATUS_OK, hash_t, int32_t, ngs_load32, ngs_release, token_t, uint32_t, uint64_t,
)

import numpy as np

from ngramspec.errors import CapacityError, FormatError, InputError

cdef enum:
    BORDER = -1           # between documents: no n-gram crosses it
    MOST_TOKENS = 0xFFFFFFFF  # places of n-grams have 32 bits
    LARGEST = (COUNT_MAX // ENTRY_COUNT_MAX) + 1   # most entries of one pair

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

cdef struct StreamC:
    const EntryC* next
    const EntryC* end
    bint ended

cdef struct MergerC:
    StreamC* streams
    Py_ssize_t num_streams
    Py_ssize_t* heap        # streams that have an entry, the smallest entry first
    Py_ssize_t heap_len
    EntryC pair             # pair in the making; its count is in `total`
    uint64_t total          # 0: none in the making
    uint64_t min_count

# The fields of a record.
cdef struct FieldsC:
    KeyC key
    bint many
    uint32_t best
    uint32_t count            # or the place of the list

cdef struct ReaderC:
    const StaticC* cache
    const SectionsC* sections
    Py_ssize_t size
    Py_ssize_t record         # next record
    FieldsC parts             # its fields, once its list has begun
    Py_ssize_t place          # where the next list must lie
    Py_ssize_t pair           # next pair of the record's list
    Py_ssize_t num_pairs      # of the record's list
    uint32_t follower         # of the previous pair
    uint64_t total            # of the list so far
    uint32_t best_count       # of the list so far
    uint32_t best
    const unsigned char* keep  # per record: 0 = leave out; NULL = all


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
        return CursorC(tokens=self._tokens, len=self._len, at=0, run=0, size=size, cell_bits=cell_bits, check_bits=check_bits,
                       power=hash_power(size, LCG), hash=0)

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
    """Merge entries until a stream runs dry or there is room for fewer than LARGEST."""
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
cdef class EntryMerger(Owner):
    """EntryMerger(sources, min_count=1): read many sorted streams of packed entries as one.

    Args:
        sources: Objects whose `read()` returns the next entries, uint64 of shape (n, 2), ascending,
            within and across calls, and an empty array at the end.
        min_count: Pairs of n-gram and follower with a lower total count are left out, 1..2147483647.

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
        self._m.streams = <StreamC*>self.take(len(self._sources) + 1, sizeof(StreamC))
        self._m.heap = <Py_ssize_t*>self.take(len(self._sources) + 1, sizeof(Py_ssize_t))

    def read(self, Py_ssize_t max_entries=65536):
        """Return the next merged entries.

        Args:
            max_entries: Most entries to return; values below 1024 count as 1024.

        Returns:
            uint64, shape (n, 2), ascending; empty at the end only. A new array.

        Raises:
            InputError: A source returned another shape or dtype.

        Cost: O(n log sources). Threads: releases the GIL while merging.
        """
        cdef Py_ssize_t room = max_entries if max_entries > 1024 else 1024
        cdef Py_ssize_t num = 0
        cdef EntryC* start
        entries = np.empty((room, 2), dtype=np.uint64)
        cdef uint64_t[:, ::1] out = entries
        start = <EntryC*>&out[0, 0]
        while num + LARGEST <= room and self._refill():
            with nogil:
                _build_heap(&self._m)
                num += _merge(&self._m, start + num, room - num)
        if num + LARGEST <= room and self._m.total:
            num += _finish_pair(&self._m, start + num)
        return entries[:num]

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
        # An empty slice would keep its whole array alive.
        self._held[i] = None if self._m.streams[i].ended else entries
        if view.shape[0]:
            self._m.streams[i].next = <const EntryC*>&view[0, 0]
            self._m.streams[i].end = self._m.streams[i].next + view.shape[0]
        return 0


cdef Py_ssize_t _sum_pair(const EntryC* e, Py_ssize_t n, uint64_t* total) noexcept nogil:
    """Sum the counts of the first pair; return its number of entries."""
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


def entries_beyond(entries, base):
    """Return the pairs whose count exceeds that in `base`, each with the difference.

    Args:
        entries, base: uint64, shape (n, 2), ascending.

    Returns:
        uint64, shape (m, 2), ascending. A new array.

    Raises:
        InputError: An array has another shape or dtype.

    Cost: O(n). Threads: releases the GIL.
    """
    cdef const uint64_t[:, ::1] a = entries_view(entries)
    cdef const uint64_t[:, ::1] b = entries_view(base)
    cdef const EntryC* old = NULL
    pairs = np.empty((a.shape[0] + 1, 2), dtype=np.uint64)
    cdef uint64_t[:, ::1] out = pairs
    cdef Py_ssize_t num = 0
    if b.shape[0]:
        old = <const EntryC*>&b[0, 0]
    if a.shape[0]:
        with nogil:
            num = _subtract(<const EntryC*>&a[0, 0], a.shape[0], old, b.shape[0], <EntryC*>&out[0, 0])
    return pairs[:num]


# A mapped file may change while it is read: read each word once and use only the checked copy.
cdef FieldsC _parts(const uint32_t* r, Py_ssize_t size) noexcept nogil:
    cdef FieldsC parts
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


cdef const char* _bad_record(ReaderC* x, const uint32_t* r, const FieldsC* parts) noexcept nogil:
    """Return what is wrong with a record or the head of its list, NULL if nothing; set x.num_pairs."""
    cdef token_t[NGRAM_MAX] tokens
    cdef FieldsC before
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
            return "expected a record that sorts after the previous one"
    if not parts.many:
        if parts.count == 0 or parts.count > COUNT_MAX:
            return "expected a count in 1..2147483647"
        return NULL
    if parts.count != x.place:
        return "expected the place after the previous list"
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
    """Return what is wrong with the head of a list whose pairs have been read, NULL if nothing."""
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
    """Write entries until fewer than LARGEST fit, all are written or something is broken."""
    cdef Py_ssize_t num = 0
    cdef const uint32_t* r
    cdef const uint32_t* pair
    cdef uint32_t follower, count
    cdef bint keeps
    while num + LARGEST <= room and x.record < x.sections.num_ngrams:
        if x.pair == 0:
            r = x.sections.records + x.record * record_words(x.size)
            x.parts = _parts(r, x.size)
            broken[0] = _bad_record(x, r, &x.parts)
            if broken[0] != NULL:
                return num
            x.total = x.best_count = 0
        keeps = x.keep == NULL or x.keep[x.record] != 0
        if not x.parts.many:
            num += _put(out + num, x.parts.key, x.parts.best, x.parts.count) if keeps else 0
            x.record += 1
            continue
        pair = x.sections.followers + x.place + LIST_HEAD + 2 * x.pair
        follower = ngs_load32(&pair[0])
        count = ngs_load32(&pair[1])
        broken[0] = _bad_pair(x, follower, count)
        if broken[0] != NULL:
            return num
        num += _put(out + num, x.parts.key, follower, count) if keeps else 0
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
    """EntryReader(cache, size, keep=None): read all n-grams of one size as packed entries, in file order.

    Args:
        cache: The StaticCache, kept alive.
        size: Tokens per n-gram, 1..4; a size that the cache lacks has no entries.
        keep: uint8, shape (n-grams of the size,), in file order; 0 = leave the n-gram out. None = keep all.

    Raises:
        InputError: size is out of its bounds, or keep has another shape.

    Thread-safety: one thread at a time.
    """

    cdef ReaderC _x
    cdef StaticCache _cache
    cdef object _keep

    def __cinit__(self, StaticCache cache not None, Py_ssize_t size, keep=None):
        cdef const unsigned char[::1] view
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
        self._cache = cache
        self._x.cache = &cache.c
        self._x.sections = &cache.c.sizes[size]
        self._x.size = size
        if keep is not None:
            view = keep
            if view.shape[0] != self._x.sections.num_ngrams:
                raise InputError(f"keep needs {self._x.sections.num_ngrams} values, one per n-gram, "
                                 f"got {view.shape[0]}")
            self._keep = keep
            self._x.keep = &view[0] if view.shape[0] else NULL

    def read(self, Py_ssize_t max_entries=65536):
        """Return the next entries, at most max_entries (below 1024 it counts as 1024); empty at the end.

        Returns:
            uint64, shape (n, 2), ascending. A new array.

        Raises:
            FormatError: A record or list is damaged; the message names file, offset and what was expected.

        Cost: O(n). Threads: releases the GIL.
        """
        cdef Py_ssize_t room = max_entries if max_entries > 1024 else 1024
        cdef Py_ssize_t num
        cdef const char* broken = NULL
        entries = np.empty((room, 2), dtype=np.uint64)
        cdef uint64_t[:, ::1] out = entries
        with nogil:
            num = _read(&self._x, <EntryC*>&out[0, 0], room, &broken)
        if broken != NULL:
            raise FormatError(self._place_of() + broken.decode())
        if num == 0 and self._x.record == self._x.sections.num_ngrams and self._x.place != self._x.sections.followers_len:
            raise FormatError(f"{self._cache.name}: followers of {self._x.size}-grams: expected no words "
                              f"after the last list, found {self._x.sections.followers_len - self._x.place}")
        return entries[:num]

    def check_index(self, index):
        """Raise FormatError unless the cache's index equals `index`, which was rebuilt from its records."""
        views = self._cache.sections(self._x.size)
        if views is not None and len(views[2]) != len(index):
            raise FormatError(f"{self._cache.name}: index of {self._x.size}-grams: expected {len(index)} words, "
                              f"found {len(views[2])}")
        wrong = np.flatnonzero(np.asarray(views[2]) != index) if views is not None else ()
        if len(wrong):
            raise FormatError(f"{self._cache.name}: index of {self._x.size}-grams: word {wrong[0]} "
                              f"does not match the records")

    cdef str _place_of(self):
        offsets = self._cache.offsets.get(self._x.size, (0, 0))
        at = offsets[0] + 4 * self._x.record * record_words(self._x.size)
        return f"{self._cache.name}: {self._x.size}-gram record at offset {at}: "


def tokens_of(entries, Py_ssize_t size):
    """Unpack entries into tokens and counts.

    Args:
        entries: uint64, shape (n, 2).
        size: Tokens per n-gram, 1..4.

    Returns:
        int32, shape (n, size + 2): the n-gram, oldest token first, the follower, the count. A new array.

    Raises:
        InputError: size is out of its bounds, or entries has another shape or dtype.
    """
    cdef const uint64_t[:, ::1] view = entries_view(entries)
    cdef const EntryC* e
    cdef Py_ssize_t i
    if not 1 <= size <= NGRAM_MAX:
        raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
    rows = np.empty((len(entries), size + 2), dtype=np.int32)
    cdef int32_t[:, ::1] out = rows
    for i in range(view.shape[0]):
        e = <const EntryC*>&view[i, 0]
        key_tokens(e.a, e.b >> OLDEST_SHIFT, size, &out[i, 0])
        out[i, size] = entry_follower(e)
        out[i, size + 1] = entry_count(e)
    return rows
