"""SuccessorPool: the target's likeliest successors of tokens and of pairs of tokens, shared by drafters.

A context is looked up in one set of WAYS entries. In a full set, a new context takes the place of the one
that was observed least often lately; the others are worn down.
"""

cimport cython

from ngramspec._native.core.arguments cimport token_view
from ngramspec._native.core.threads cimport locks_add, locks_remove
from ngramspec._native.core.types cimport (
    ngs_acquire32, ngs_add64, ngs_fence, ngs_give_way, ngs_load32, ngs_load64, ngs_lock, ngs_release,
    ngs_release32, ngs_store32, ngs_store64, ngs_take, ngs_unlock, uint64_t,
)

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    VERSION = 0           # word of an entry: odd while it is written
    BEFORE = 1            # the token before the last one, or NONE_BEFORE
    LAST = 2
    COUNTS = 3            # successors | used << 8
    HEAD = 4              # words before the tokens
    MOST_USED = 15
    CLEARED = 4096        # sets that `clear` empties at a time
    MOST_CONTEXTS = 1 << 26


cdef inline uint32_t* _set(const SuccessorsC* s, token_t before, token_t last) noexcept nogil:
    """The set of entries where a context can be."""
    cdef uint64_t h = (<uint64_t><uint32_t>(before + 1) * 0x9E3779B97F4A7C15u
                       + <uint64_t><uint32_t>last) * 0xD6E8FEB86659FD93u
    h ^= h >> 32
    h *= 0xD6E8FEB86659FD93u
    return s.words + <Py_ssize_t>((h >> 32) * <uint64_t>s.num_sets >> 32) * WAYS * s.stride


cdef inline bint _is(const uint32_t* entry, token_t before, token_t last) noexcept nogil:
    return (ngs_load32(entry + LAST) == <uint32_t>last and ngs_load32(entry + BEFORE) == <uint32_t>before
            and ngs_load32(entry + COUNTS) & 0xFF)


cdef void successors_find(const SuccessorsC* s, token_t before, token_t last, LikelyC* followers) noexcept nogil:
    """Copy an entry; one that is written meanwhile counts as unknown."""
    cdef const uint32_t* entry = _set(s, before, last)
    cdef uint32_t version, pair = 0
    cdef int _way, i
    followers.n = 0
    for _way in range(WAYS):
        version = ngs_acquire32(entry + VERSION)
        if not version & 1 and _is(entry, before, last):
            followers.n = min(<int>(ngs_load32(entry + COUNTS) & 0xFF), s.top)
            for i in range(followers.n):
                followers.tokens[i] = <token_t>ngs_load32(entry + HEAD + i)
                if not i & 1:
                    pair = ngs_load32(entry + HEAD + s.top + i // 2)
                followers.p[i] = <uint16_t>(pair >> 16 * (i & 1))
            ngs_fence()
            if ngs_load32(entry + VERSION) != version:
                followers.n = 0
            return
        entry += s.stride


cdef void _write(SuccessorsC* s, uint32_t* entry, token_t before, token_t last, uint32_t used,
                 const LikelyC* followers) noexcept nogil:
    cdef int n = min(followers.n, s.top)
    cdef uint32_t pair
    cdef int i
    ngs_store32(entry + VERSION, entry[VERSION] + 1)
    ngs_fence()
    ngs_store32(entry + BEFORE, <uint32_t>before)
    ngs_store32(entry + LAST, <uint32_t>last)
    ngs_store32(entry + COUNTS, <uint32_t>n | used << 8)
    for i in range(n):
        ngs_store32(entry + HEAD + i, <uint32_t>followers.tokens[i])
    for i in range(0, n, 2):
        pair = followers.p[i] | (<uint32_t>followers.p[i + 1] << 16 if i + 1 < n else 0)
        ngs_store32(entry + HEAD + s.top + i // 2, pair)
    ngs_release32(entry + VERSION, entry[VERSION] + 1)


cdef uint32_t* _place_for(SuccessorsC* s, uint32_t* entry) noexcept nogil:
    """Return the entry of a set that a new context takes; the others are worn down if none was empty."""
    cdef uint32_t* least = NULL
    cdef uint32_t* other
    cdef int i
    for i in range(WAYS):
        other = entry + i * s.stride
        if not other[COUNTS]:
            ngs_store64(&s.num_entries, s.num_entries + 1)
            return other
        if least == NULL or other[COUNTS] >> 8 < least[COUNTS] >> 8:
            least = other
    for i in range(WAYS):
        other = entry + i * s.stride
        if other[COUNTS] >> 8:
            ngs_store32(other + COUNTS, other[COUNTS] - (1 << 8))
    ngs_store64(&s.num_evicted, s.num_evicted + 1)
    return least


cdef void successors_put(SuccessorsC* s, token_t before, token_t last, const LikelyC* followers) noexcept nogil:
    if followers.n > 0:
        _put(s, before, last, followers, -1)
        ngs_add64(&s.num_observed, 1)


cdef void _put(SuccessorsC* s, token_t before, token_t last, const LikelyC* followers, int used) noexcept nogil:
    """Write an entry; `used`: how often it was observed, -1 = once more than what is known says."""
    cdef uint32_t* entry = _set(s, before, last)
    cdef uint32_t* place = NULL
    cdef uint32_t observed = 0
    cdef int i
    ngs_lock(&s.lock)
    for i in range(WAYS):
        if _is(entry + i * s.stride, before, last):
            place = entry + i * s.stride
            observed = place[COUNTS] >> 8
    if place == NULL:
        place = _place_for(s, entry)
    _write(s, place, before, last, <uint32_t>used if used >= 0 else min(observed + 1, <uint32_t>MOST_USED), followers)
    if ngs_unlock(&s.lock):
        ngs_give_way(&s.lock)


cdef bint _differ(const token_t* tokens, int n) noexcept nogil:
    """Whether no token comes twice."""
    cdef int i, k
    for i in range(n):
        for k in range(i):
            if tokens[k] == tokens[i]:
                return False
    return True


cdef const char* _check(const SuccessorsC* s) noexcept nogil:
    """Return the first broken invariant, NULL when all hold. The lock is held."""
    cdef const uint32_t* entry = s.words
    cdef const uint32_t* pairs
    cdef int64_t used = 0
    cdef Py_ssize_t _i
    cdef uint32_t n
    cdef int k
    for _i in range(s.num_sets * WAYS):
        n = entry[COUNTS] & 0xFF
        if n:
            used += 1
            if entry[VERSION] & 1 or n > <uint32_t>s.top or entry[COUNTS] >> 8 > MOST_USED:
                return "successors: an entry is half written, or counts more than it can hold"
            if <token_t>entry[LAST] < 0 or <token_t>entry[BEFORE] < NONE_BEFORE or not (
                    s.words <= _set(s, <token_t>entry[BEFORE], <token_t>entry[LAST]) <= entry):
                return "successors: an entry is not where its context belongs"
            if not _differ(<const token_t*>(entry + HEAD), <int>n):
                return "successors: a token comes twice"
            pairs = entry + HEAD + s.top
            for k in range(<int>n):
                if <token_t>entry[HEAD + k] < 0:
                    return "successors: a token is negative"
                if k and (pairs[k // 2] >> 16 * (k & 1)) & 0xFFFF > (pairs[(k - 1) // 2] >> 16 * ((k - 1) & 1)) & 0xFFFF:
                    return "successors: the likeliest token is not the first"
        entry += s.stride
    if used != s.num_entries:
        return "successors: num_entries differs from the entries in use"
    return NULL


@cython.final
cdef class SuccessorPool:
    """SuccessorPool(capacity=131072, top=8): what the target held likeliest after its latest contexts.

    Made for the drafter recycle, by any number of drafters and threads: what one request's passes told, all draft
    from. A full set of entries gives up the context that was observed least often lately.

    Args:
        capacity: Most contexts held, 64..2**26; rounded up to sets of 4. A context is a token, or two.
        top: Successors kept of a context, the likeliest ones, 1..16.

    Raises:
        InputError: An argument is out of its bounds.
        MemoryError: No room.

    Memory: 64 bytes per context with top=8, allocated at once.
    Thread-safety: safe. Readers take no lock; writers hold one while they write an entry.

    Source: Token Recycling (arXiv 2408.08696), which keeps a matrix of the latest successors of every token.
    """

    def __cinit__(self, Py_ssize_t capacity=1 << 17, Py_ssize_t top=8):
        if not 64 <= capacity <= MOST_CONTEXTS:
            raise InputError(f"capacity must be in 64..{MOST_CONTEXTS}, got {capacity}")
        if not 1 <= top <= MOST:
            raise InputError(f"top must be in 1..{MOST}, got {top}")
        self.c.num_sets = (capacity + WAYS - 1) // WAYS
        self.c.top = <int>top
        self.c.stride = (HEAD + top + (top + 1) // 2 + 3) // 4 * 4
        self.c.words = <uint32_t*>ngs_take(self._bytes(), True)
        if self.c.words == NULL:
            raise MemoryError(f"no memory for the successors of {capacity} contexts")
        locks_add(&self.c.lock)

    cdef size_t _bytes(self) noexcept:
        return <size_t>(self.c.num_sets * WAYS * self.c.stride) * sizeof(uint32_t)

    def __dealloc__(self):
        locks_remove(&self.c.lock)
        ngs_release(self.c.words, self._bytes())

    @property
    def capacity(self):
        """Return the number of contexts that fit."""
        return self.c.num_sets * WAYS

    @property
    def top(self):
        """Return how many successors of a context are kept."""
        return self.c.top

    @property
    def num_entries(self):
        """Return the number of contexts that it holds."""
        return ngs_load64(&self.c.num_entries)

    @property
    def num_observed(self):
        """Return how many observations it took."""
        return ngs_load64(&self.c.num_observed)

    @property
    def num_evicted(self):
        """Return how many contexts gave way to others."""
        return ngs_load64(&self.c.num_evicted)

    @property
    def nbytes(self):
        """Return its memory in bytes."""
        return self._bytes()

    def successors(self, token_ids):
        """Return what is known to follow a context.

        Args:
            token_ids: The context: one token, or two, the older one first. int32, shape (1,) or (2,).

        Returns:
            (tokens, probabilities): int32 and float32, shape (n,), n <= top, likeliest first; new arrays, empty
            when nothing is known.

        Raises:
            InputError: token_ids is not such an array.
        """
        cdef const token_t[::1] context = token_view(token_ids, "token_ids")
        cdef LikelyC followers
        cdef token_t before = NONE_BEFORE
        cdef int i
        if not 1 <= context.shape[0] <= 2:
            raise InputError(f"token_ids must hold 1 or 2 tokens, got {context.shape[0]}")
        if context.shape[0] == 2:
            before = context[0]
        successors_find(&self.c, before, context[context.shape[0] - 1], &followers)
        tokens, probabilities = np.empty(followers.n, np.int32), np.empty(followers.n, np.float32)
        for i in range(followers.n):
            tokens[i], probabilities[i] = followers.tokens[i], followers.p[i] / 65535.0
        return tokens, probabilities

    def entries(self):
        """Return all that the pool holds, for files, in the order of the contexts.

        Returns:
            uint32, shape (n, 3 + top + (top + 1) // 2), a row per context: the token before the last one or -1, the
            last one, number of successors | times observed << 8, successors, their probabilities * 65535, two to a
            word. Unused words are 0. A new array.

        Cost: O(capacity). Threads: releases the GIL; other threads may observe meanwhile, an entry at a time.
        """
        cdef Py_ssize_t width = HEAD - 1 + self.c.top + (self.c.top + 1) // 2
        cdef Py_ssize_t i, k, n = 0, num = self.c.num_sets * WAYS
        cdef uint32_t[:, ::1] rows
        cdef const uint32_t* entry
        table = np.zeros((num, width), np.uint32)
        rows = table
        with nogil:
            for i in range(num):
                ngs_lock(&self.c.lock)
                entry = self.c.words + i * self.c.stride
                if entry[COUNTS]:
                    for k in range(HEAD - 1 + <Py_ssize_t>(entry[COUNTS] & 0xFF)):
                        rows[n, k] = entry[k + 1]
                    for k in range(<Py_ssize_t>(entry[COUNTS] & 0xFF) + 1 >> 1):
                        rows[n, HEAD - 1 + self.c.top + k] = entry[HEAD + self.c.top + k]
                    n += 1
                if ngs_unlock(&self.c.lock):
                    ngs_give_way(&self.c.lock)
        table = table[:n]
        return table[np.lexsort((table[:, 1], table[:, 0]))]

    def insert(self, entries):
        """Take in what `entries` of a pool with the same `top` returned.

        Args:
            entries: As `entries` returns them, C-contiguous. Contexts that the pool knows are replaced.

        Raises:
            InputError: A row is impossible; those before it were taken in.

        Cost: O(n). Threads: keeps the GIL; other threads may observe meanwhile, an entry at a time.
        """
        cdef const uint32_t[:, ::1] rows
        cdef LikelyC followers
        cdef Py_ssize_t i, pairs = HEAD - 1 + self.c.top
        cdef int used, k
        cdef bint sound
        try:
            rows = entries
        except (ValueError, TypeError, BufferError) as error:
            raise InputError(f"entries must be uint32 of shape (n, {pairs + (self.c.top + 1) // 2}): {error}") from None
        if rows.shape[1] != pairs + (self.c.top + 1) // 2:
            raise InputError(f"entries must have {pairs + (self.c.top + 1) // 2} columns for top={self.c.top}, "
                             f"got {rows.shape[1]}")
        for i in range(rows.shape[0]):
            followers.n, used = <int>(rows[i, COUNTS - 1] & 0xFF), <int>(rows[i, COUNTS - 1] >> 8)
            sound = (0 < followers.n <= self.c.top and used <= MOST_USED and <token_t>rows[i, LAST - 1] >= 0
                     and <token_t>rows[i, BEFORE - 1] >= NONE_BEFORE)
            for k in range(followers.n if sound else 0):
                followers.tokens[k] = <token_t>rows[i, HEAD - 1 + k]
                followers.p[k] = <uint16_t>(rows[i, pairs + k // 2] >> 16 * (k & 1))
                sound = sound and followers.tokens[k] >= 0 and followers.p[k] > 0 and (
                    k == 0 or followers.p[k] <= followers.p[k - 1])
            if not sound or not _differ(followers.tokens, followers.n):
                raise InputError(f"entries: row {i} is no context with its successors")
            _put(&self.c, <token_t>rows[i, BEFORE - 1], <token_t>rows[i, LAST - 1], &followers, used)

    def clear(self):
        """Forget all contexts. Threads: releases the GIL; others may observe meanwhile."""
        cdef Py_ssize_t start = 0, stop, i
        cdef uint32_t* entry
        with nogil:
            while start < self.c.num_sets * WAYS:
                stop = min(start + CLEARED, self.c.num_sets * WAYS)
                ngs_lock(&self.c.lock)
                for i in range(start, stop):
                    entry = self.c.words + i * self.c.stride
                    if entry[COUNTS]:
                        ngs_store32(entry + VERSION, entry[VERSION] + 1)
                        ngs_fence()
                        ngs_store32(entry + COUNTS, 0)
                        ngs_release32(entry + VERSION, entry[VERSION] + 1)
                        ngs_store64(&self.c.num_entries, self.c.num_entries - 1)
                start = stop
                if ngs_unlock(&self.c.lock):
                    ngs_give_way(&self.c.lock)

    def check(self):
        """Return the first broken invariant, "" when all hold. O(capacity); for tests: writers wait meanwhile."""
        cdef const char* broken
        with nogil:
            ngs_lock(&self.c.lock)
            broken = _check(&self.c)
            ngs_unlock(&self.c.lock)
        return "" if broken == NULL else broken.decode()
