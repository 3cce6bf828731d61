"""Counts of followers that threads share.

All n-grams that end with the same token lie in one shard, so a lookup and a token that is learned
enter one lock each, and threads meet only where their texts do.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ngramspec._native.cache.counts cimport (
    NGRAM_MAX, CountsC, counts_add, counts_check, counts_fetch, counts_free, counts_init, counts_nbytes,
    counts_reserve, ngram_size,
)
from ngramspec._native.core.types cimport (
    STATUS_NO_MEMORY, STATUS_OK, Status, ngs_give_way, ngs_lock, ngs_lock_shared, ngs_unlock, ngs_unlock_shared,
    uint32_t,
)

cdef enum:
    SHARD_BITS = 4        # MAX_SHARDS of them
    MIN_SHARED = 1 << 16  # n-grams from which on they are worth the memory and an uneven bound
    CHUNK = 4             # tokens learned per hold of a lock


cdef Status shared_init(SharedC* x, Py_ssize_t ngram_min, Py_ssize_t ngram_max, Py_ssize_t max_ngrams) noexcept nogil:
    """Set up empty counts of at most max_ngrams n-grams, each shard with its part of them."""
    cdef int bits = SHARD_BITS if max_ngrams >= MIN_SHARED else 0
    cdef int i
    x.shards = <ShardC*>calloc(<size_t>1 << bits, sizeof(ShardC))
    if x.shards == NULL:
        return STATUS_NO_MEMORY
    x.num_shards = 1 << bits
    x.shift = 32 - bits
    x.ngram_min = ngram_min
    x.ngram_max = ngram_max
    for i in range(x.num_shards):
        counts_init(&x.shards[i].counts, max_ngrams >> bits)
    return STATUS_OK


cdef void shared_free(SharedC* x) noexcept nogil:
    cdef int i
    for i in range(x.num_shards):
        counts_free(&x.shards[i].counts)
    free(x.shards)
    x.shards = NULL
    x.num_shards = 0


cdef Status shared_reserve(SharedC* x, const Py_ssize_t* num_adds) noexcept nogil:
    cdef Status status = STATUS_OK
    cdef int i
    for i in range(x.num_shards):
        if status == STATUS_OK and num_adds[i]:
            ngs_lock(&x.shards[i].lock)
            status = counts_reserve(&x.shards[i].counts, num_adds[i])
            ngs_unlock(&x.shards[i].lock)
    return status


cdef void _add(const SharedC* x, CountsC* c, const token_t* tokens, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Count tokens[start:end] under the lock of their shard."""
    cdef uint32_t[CHUNK * NGRAM_MAX] hashes
    cdef Py_ssize_t i, size
    counts_fetch(c, tokens, start, end, hashes)
    for i in range(start, end):
        for size in range(x.ngram_min, (x.ngram_max if x.ngram_max < i else i) + 1):
            counts_add(c, hashes[(i - start) * NGRAM_MAX + size - 1], &tokens[i - 1], size, tokens[i], 1)


cdef Status shared_learn(SharedC* x, const token_t* tokens, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    cdef ShardC* shard
    cdef Py_ssize_t stop
    cdef Status status
    start = start if start > 0 else 1  # nothing is before the first
    while start < end:
        shard = shared_shard(x, tokens[start - 1])
        stop = start + 1
        while stop < end and stop - start < CHUNK and shared_shard(x, tokens[stop - 1]) == shard:
            stop += 1
        ngs_lock(&shard.lock)
        status = counts_reserve(&shard.counts, (stop - start) * NGRAM_MAX)
        if status == STATUS_OK:
            _add(x, &shard.counts, tokens, start, stop)
        if ngs_unlock(&shard.lock):
            ngs_give_way(&shard.lock)
        if status != STATUS_OK:
            return status
        start = stop
    return STATUS_OK


cdef void shared_order(const uint8_t* numbers, int num, uint8_t* order) noexcept nogil:
    cdef int[MAX_SHARDS + 1] at
    cdef int i
    memset(at, 0, sizeof(at))
    for i in range(num):
        at[numbers[i] + 1] += 1
    for i in range(MAX_SHARDS):
        at[i + 1] += at[i]
    for i in range(num):
        order[at[numbers[i]]] = <uint8_t>i
        at[numbers[i]] += 1


cdef FiguresC shared_figures(const SharedC* x) noexcept nogil:
    cdef FiguresC figures = FiguresC(0, 0, 0, sizeof(ShardC) * <size_t>x.num_shards)
    cdef ShardC* shard
    cdef void* left
    cdef int i
    for i in range(x.num_shards):
        shard = &x.shards[i]
        left = ngs_lock_shared(&shard.lock)
        figures.num_ngrams += shard.counts.num_ngrams - shard.counts.num_free_ngrams
        figures.num_followers += shard.counts.num_followers
        figures.num_adds += shard.counts.num_adds
        figures.nbytes += counts_nbytes(&shard.counts)
        ngs_unlock_shared(&shard.lock, left)
    return figures


cdef const char* _check_shard(const SharedC* x, int number) noexcept nogil:
    cdef const CountsC* c = &x.shards[number].counts
    cdef const char* broken = counts_check(c)
    cdef Py_ssize_t i
    if broken != NULL:
        return broken
    if c.num_ngrams - c.num_free_ngrams > c.max_ngrams:
        return "shared: a shard holds more n-grams than its bound"
    for i in range(c.num_ngrams):
        if c.ngrams[i].key[0] >= 0 and shared_number(x, c.ngrams[i].key[ngram_size(&c.ngrams[i]) - 1]) != number:
            return "shared: an n-gram lies in another shard"
    return NULL


cdef const char* shared_check(const SharedC* x) noexcept nogil:
    cdef const char* broken = NULL
    cdef void* left
    cdef int i
    for i in range(x.num_shards):
        left = ngs_lock_shared(&x.shards[i].lock)
        broken = _check_shard(x, i)
        ngs_unlock_shared(&x.shards[i].lock, left)
        if broken != NULL:
            break
    return broken
