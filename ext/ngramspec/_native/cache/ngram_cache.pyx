"""NgramCache: how often which token followed which n-gram, shared or loaded from a file."""

cimport cython

from ngramspec._native.cache.counts cimport shared_check, shared_figures, shared_free, shared_init, shared_learn
from ngramspec._native.cache.records cimport (
    add_entries, add_records, all_records, entries_of_counts, raise_for, record_of,
)
from ngramspec._native.core.arguments cimport token_view
from ngramspec._native.core.locks cimport locks_add, locks_remove
from ngramspec._native.core.types cimport NGRAM_MAX, Status, token_t

from ngramspec.errors import InputError


@cython.final
cdef class NgramCache:
    """NgramCache(ngram_min=1, ngram_max=4, max_ngrams=4194304): n-grams and their followers with counts.

    Serves as `dynamic` of "ngram-cache", and then grows with what slots generate, or as `static`, of
    which a copy is taken.

    Args:
        ngram_min: Shortest n-gram learned, in tokens, 1..4.
        ngram_max: Longest n-gram learned, in tokens, ngram_min..4.
        max_ngrams: Most n-grams kept, 16..2**30; those unused for longest make room for new ones. Up
            to about 80 bytes each.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room.

    Thread-safety: all methods, from any thread. If max_ngrams >= 65536, n-grams are split by their newest
        token over 16 shards, each with a sixteenth of the room and its own lock, held for about a
        microsecond at a time; lookups share it.
    """

    def __cinit__(self, ngram_min=1, ngram_max=4, max_ngrams=1 << 22):
        for name, value, low, high in (("ngram_min", ngram_min, 1, NGRAM_MAX),
                                       ("ngram_max", ngram_max, ngram_min, NGRAM_MAX),
                                       ("max_ngrams", max_ngrams, 16, 1 << 30)):
            if not isinstance(value, int) or not low <= value <= high:
                raise InputError(f"{name} must be an integer in {low}..{high}, got {value!r}")
        self.ngram_min = self.c.ngram_min = ngram_min
        self.ngram_max = self.c.ngram_max = ngram_max
        self.max_ngrams = max_ngrams
        raise_for(shared_init(&self.c, ngram_min, ngram_max, max_ngrams))
        for i in range(self.c.num_shards):
            locks_add(&self.c.shards[i].lock)

    def __dealloc__(self):
        for i in range(self.c.num_shards):
            locks_remove(&self.c.shards[i].lock)
        shared_free(&self.c)

    def __len__(self):
        """Return the number of n-grams kept."""
        return shared_figures(&self.c).num_ngrams

    @property
    def nbytes(self):
        """Return the memory in use, in bytes."""
        return shared_figures(&self.c).nbytes

    def update(self, token_ids, Py_ssize_t start=0):
        """Count each token from `start` on as a follower of the n-grams before it.

        Args:
            token_ids: Text, oldest first. int32, shape (n,). Not kept.
            start: First position that counts as a follower, 0..n; tokens before it serve as context.

        Raises:
            InputError: token_ids is not a 1-D int32 array with ids >= 0, or start is out of bounds.
            MemoryError: No room; what was learned before stays.

        Cost: O(n). Threads: releases the GIL.
        """
        cdef const token_t[::1] tokens = token_view(token_ids, "token_ids")
        cdef Py_ssize_t end = tokens.shape[0]
        cdef Status status
        if not 0 <= start <= end:
            raise InputError(f"start must be in 0..{end}, got {start}")
        with nogil:
            status = shared_learn(&self.c, &tokens[0], start, end)
        raise_for(status)

    def followers(self, token_ids):
        """Return what followed an n-gram as a dict token -> count, the most frequent first.

        Args:
            token_ids: The n-gram, oldest first. int32, shape (n,), 1 <= n <= 4.

        Raises:
            InputError: token_ids has another shape, dtype or length.
        """
        cdef const token_t[::1] tokens = token_view(token_ids, "token_ids")
        cdef Py_ssize_t size = tokens.shape[0]
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"token_ids must hold 1..{NGRAM_MAX} tokens, got {size}")
        pairs = record_of(&self.c, &tokens[size - 1], size)[5:].tolist()
        ranked = sorted(zip(pairs[0::2], pairs[1::2]), key=lambda pair: (-pair[1], pair[0]))
        return dict(ranked)

    def merge(self, NgramCache other not None):
        """Add the counts of another cache; counts saturate at 2147483647.

        Raises:
            InputError: `other` is this cache.
            MemoryError: As `add_records`.
        """
        if other is self:
            raise InputError("a cache cannot be merged with itself; merge a copy")
        self.add_records(other.records())

    def records(self):
        """Return all n-grams with followers as llama.cpp's files lay them out.

        Returns:
            int32, shape (m,): per n-gram 4 tokens (-1 after the last), the number of followers F,
            then F pairs token, count. Sorted by n-gram, then token. A new array.

        Cost: O(n-grams), plus sorting. Threads: releases the GIL.
        """
        return all_records(&self.c)

    def add_records(self, records):
        """Add n-grams laid out as `records` returns them.

        A second record of an n-gram adds to the first; so does a second pair of a token.

        Args:
            records: int32, shape (m,), C-contiguous. Not kept.

        Returns:
            int: The number of records. Beyond max_ngrams, older n-grams make room.

        Raises:
            InputError: records does not hold a whole number of valid records. Nothing was added; the
                message names the position in int32 units.
            MemoryError: No room. Nothing was added, unless other threads took the reserved room meanwhile.

        Cost: O(m), 64 followers per hold of the lock. Threads: releases the GIL.
        """
        return add_records(&self.c, records)

    def entries(self, Py_ssize_t size):
        """Return the n-grams of a size as packed entries, as statistics files use them.

        Args:
            size: Tokens per n-gram, 1..4.

        Returns:
            uint64, shape (n, 2), ascending. A new array.

        Raises:
            InputError: size is out of its bounds, or a token id is above 2097151.
            MemoryError: No room.

        Cost: O(n-grams). Threads: releases the GIL.
        """
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
        return entries_of_counts(&self.c, size)

    def add_entries(self, entries, Py_ssize_t size):
        """Add packed entries of n-grams of `size` tokens, as `entries` returns them.

        Raises:
            InputError: size is out of its bounds, or entries is not a uint64 array of shape (n, 2).
            MemoryError: As `add_records`.

        Cost: O(n), 64 entries per hold of the lock. Threads: releases the GIL.
        """
        if not 1 <= size <= NGRAM_MAX:
            raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
        add_entries(&self.c, entries, size)

    @property
    def num_updates(self):
        """Return how often a follower was counted so far: equal numbers mean that nothing was added."""
        return shared_figures(&self.c).num_adds

    def check(self):
        """Return the first broken invariant, "" when all hold. O(n-grams)."""
        cdef const char* broken
        with nogil:
            broken = shared_check(&self.c)
        return "" if broken == NULL else broken.decode()
