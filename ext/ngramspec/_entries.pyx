"""Counts, and llama.cpp's records, to and from packed entries: what statistics files are made of."""

from libc.string cimport memset

from ngramspec._arguments cimport entries_view
from ngramspec._counts cimport NGRAM_MAX, CountsC, NgramC, counts_add, counts_reserve, ngram_hash, ngram_size
from ngramspec._packing cimport (
    ENTRY_COUNT_MAX, OLDEST_SHIFT, STORED_TOKEN_MAX, EntryC, KeyC, entry_count, entry_follower, entry_of,
    key_of, key_tokens,
)
from ngramspec._records cimport HEAD, PER_HOLD, PIECE, PieceC, measure_records, piece_begin, raise_for
from ngramspec._shared cimport (
    BLOCK, MAX_SHARDS, FiguresC, SharedC, ShardC, shared_figures, shared_number, shared_order, shared_reserve,
)
from ngramspec._sort cimport sort_items, sum_equal
from ngramspec._types cimport (
    STATUS_OK, Status, count_t, int32_t, ngs_give_way, ngs_lock, ngs_unlock, token_t, uint8_t, uint64_t,
)

import numpy as np

from ngramspec.errors import InputError


cdef enum:
    TOO_LARGE = -1        # what stands for an error where a number of entries is returned


cdef inline Py_ssize_t _entries_for(int32_t count) noexcept nogil:
    return 1 + (count - 1) // ENTRY_COUNT_MAX


cdef Py_ssize_t _put(EntryC* out, KeyC key, token_t token, count_t count) noexcept nogil:
    """Write a pair as one entry, or as several when its count is large; return how many."""
    cdef Py_ssize_t num = 0
    while count > 0:
        out[num] = entry_of(key, token, count if count < ENTRY_COUNT_MAX else ENTRY_COUNT_MAX)
        count -= count if count < ENTRY_COUNT_MAX else ENTRY_COUNT_MAX
        num += 1
    return num


cdef bint _too_large(const token_t* tokens, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if tokens[i] > STORED_TOKEN_MAX:
            return True
    return False


cdef Py_ssize_t _put_ngram(const CountsC* c, const NgramC* g, EntryC* out, bint write) noexcept nogil:
    """Write the entries of one n-gram if `write`; return how many there are, TOO_LARGE: a token is."""
    cdef Py_ssize_t size = ngram_size(g)
    cdef int32_t item = g.followers
    cdef Py_ssize_t num = 0
    cdef token_t token = g.best
    cdef count_t count = g.best_count
    cdef KeyC key
    if _too_large(g.key, size):
        return TOO_LARGE
    key = key_of(&g.key[size - 1], size)
    while True:
        if item >= 0:
            token = c.followers[item].token
            count = g.best_count if token == g.best else c.followers[item].count
            item = c.followers[item].next
        if token > STORED_TOKEN_MAX:
            return TOO_LARGE
        num += _put(out + num, key, token, count) if write else _entries_for(count)
        if item < 0:
            return num


cdef Py_ssize_t _put_piece(const CountsC* c, Py_ssize_t size, PieceC* piece, EntryC* out) noexcept nogil:
    """Write the entries of some n-grams from piece.at on; return how many more must have room for the next one.

    0: room was no obstacle; TOO_LARGE: a token is.
    """
    cdef const NgramC* g
    cdef Py_ssize_t num
    cdef Py_ssize_t used = piece.used
    cdef Py_ssize_t stop = min(piece.at + PIECE, piece.stop, c.num_ngrams)
    if piece.at >= stop:  # forgotten meanwhile
        piece.at = piece.stop
    while piece.at < stop and piece.used - used < PIECE:
        g = &c.ngrams[piece.at]
        if g.key[0] >= 0 and ngram_size(g) == size:
            num = _put_ngram(c, g, NULL, False)
            if num < 0 or piece.used + num > piece.room:
                return num
            piece.used += _put_ngram(c, g, out + piece.used, True)
        piece.at += 1
    return 0


cdef object _sorted(object entries):
    cdef uint64_t[:, ::1] view = entries
    cdef uint64_t[:, ::1] spare
    cdef Py_ssize_t num = view.shape[0]
    if num == 0:
        return entries
    spare_array = np.empty_like(entries)
    spare = spare_array
    with nogil:
        sort_items(<EntryC*>&view[0, 0], <EntryC*>&spare[0, 0], num)
        num = sum_equal(<EntryC*>&view[0, 0], num)
    return entries[:num]


cdef object _too_large_error():
    return InputError(f"statistics files hold token ids up to {STORED_TOKEN_MAX}; a larger one was counted")


cdef object entries_of_counts(SharedC* x, Py_ssize_t size):
    """All n-grams of a size as sorted entries, a new array.

    Others may go on learning: each n-gram is copied as it is at one time, new ones of a shard that come
    after its first was copied are left out, and the lock is held for PIECE of them at a time.
    """
    cdef FiguresC figures = shared_figures(x)
    # More than enough, unless counts are very large.
    cdef PieceC piece = PieceC(0, 0, 0, figures.num_ngrams + figures.num_followers)
    cdef Py_ssize_t needed = 0
    cdef ShardC* shard
    cdef uint64_t[:, ::1] out
    cdef int i
    made = np.empty((piece.room + 1, 2), dtype=np.uint64)
    for i in range(x.num_shards):
        shard = &x.shards[i]
        piece_begin(&piece, shard)
        while piece.at < piece.stop:
            if needed:
                piece.room += piece.room // 2 + needed
                made = np.concatenate([made[:piece.used], np.empty((piece.room + 1 - piece.used, 2), np.uint64)])
            out = made
            with nogil:
                needed = 0
                while piece.at < piece.stop and needed == 0:
                    ngs_lock(&shard.lock)
                    needed = _put_piece(&shard.counts, size, &piece, <EntryC*>&out[0, 0])
                    if ngs_unlock(&shard.lock):
                        ngs_give_way(&shard.lock)
            if needed < 0:
                raise _too_large_error()
    return _sorted(made[:piece.used])


cdef inline token_t _newest(const EntryC* e, Py_ssize_t size) noexcept nogil:
    cdef token_t[NGRAM_MAX] tokens
    key_tokens(e.a, e.b >> OLDEST_SHIFT, size, tokens)
    return tokens[size - 1]


cdef void _add_entry(CountsC* c, const EntryC* e, Py_ssize_t size) noexcept nogil:
    cdef token_t[NGRAM_MAX] tokens
    key_tokens(e.a, e.b >> OLDEST_SHIFT, size, tokens)
    counts_add(c, ngram_hash(&tokens[size - 1], size), &tokens[size - 1], size, entry_follower(e), entry_count(e))


cdef Status _add_block(SharedC* x, const EntryC* entries, int num, Py_ssize_t size) noexcept nogil:
    """Add at most BLOCK entries, PER_HOLD per hold of a lock."""
    cdef uint8_t[BLOCK] numbers
    cdef uint8_t[BLOCK] order
    cdef ShardC* shard
    cdef Status status
    cdef int i = 0
    cdef int stop = 0
    for i in range(num):
        numbers[i] = <uint8_t>shared_number(x, _newest(&entries[i], size))
    shared_order(numbers, num, order)
    i = 0
    while i < num:
        shard = &x.shards[numbers[order[i]]]
        while stop < num and stop - i < PER_HOLD and numbers[order[stop]] == numbers[order[i]]:
            stop += 1
        ngs_lock(&shard.lock)
        status = counts_reserve(&shard.counts, stop - i)  # others may have used what was reserved
        while i < stop and status == STATUS_OK:
            _add_entry(&shard.counts, &entries[order[i]], size)
            i += 1
        if ngs_unlock(&shard.lock):
            ngs_give_way(&shard.lock)
        if status != STATUS_OK:
            return status
    return STATUS_OK


cdef Status _reserve_all(SharedC* x, const EntryC* entries, Py_ssize_t n, Py_ssize_t size) noexcept nogil:
    """Make room for all entries before the first is added."""
    cdef Py_ssize_t[MAX_SHARDS] num_adds
    cdef Py_ssize_t i
    memset(num_adds, 0, sizeof(num_adds))
    for i in range(n):
        num_adds[shared_number(x, _newest(&entries[i], size))] += 1
    return shared_reserve(x, num_adds)


cdef int add_entries(SharedC* x, object entries, Py_ssize_t size) except -1:
    """Count all entries, of n-grams of one size."""
    cdef const uint64_t[:, ::1] view = entries_view(entries)
    cdef const EntryC* e
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t n = view.shape[0]
    cdef Status status
    if n == 0:
        return 0
    e = <const EntryC*>&view[0, 0]
    with nogil:
        status = _reserve_all(x, e, n, size)
        while at < n and status == STATUS_OK:
            status = _add_block(x, e + at, <int>min(BLOCK, n - at), size)
            at += BLOCK
    raise_for(status)
    return 0


def entries_of_records(records, Py_ssize_t size):
    """Return llama.cpp's records of n-grams of one size as packed entries.

    Args:
        records: As `NgramCache.records` returns them. int32, shape (m,).
        size: Tokens per n-gram, 1..4.

    Returns:
        uint64, shape (n, 2), ascending. A new array.

    Raises:
        InputError: Not a whole number of valid records, a token id above 2097151, or size is out
            of its bounds.
        MemoryError: No room.

    Cost: O(m).
    """
    cdef const int32_t[::1] view
    cdef uint64_t[:, ::1] out
    cdef Py_ssize_t num
    if not 1 <= size <= NGRAM_MAX:
        raise InputError(f"size must be in 1..{NGRAM_MAX}, got {size}")
    measure_records(records)
    view = records
    if view.shape[0] == 0:
        return np.empty((0, 2), dtype=np.uint64)
    with nogil:
        num = _put_records(&view[0], view.shape[0], size, NULL, False)
    if num < 0:
        raise _too_large_error()
    made = np.empty((num + 1, 2), dtype=np.uint64)
    out = made
    with nogil:
        _put_records(&view[0], view.shape[0], size, <EntryC*>&out[0, 0], True)
    return _sorted(made[:num])


cdef Py_ssize_t _put_records(const int32_t* r, Py_ssize_t n, Py_ssize_t size, EntryC* out, bint write) noexcept nogil:
    cdef const int32_t* end = r + n
    cdef Py_ssize_t num = 0
    cdef Py_ssize_t i
    while r < end:
        if r[size - 1] >= 0 and (size == NGRAM_MAX or r[size] < 0):
            if _too_large(r, size):
                return -1
            for i in range(r[NGRAM_MAX]):
                if r[HEAD + 2 * i] > STORED_TOKEN_MAX:
                    return -1
                if write:
                    num += _put(out + num, key_of(r + size - 1, size), r[HEAD + 2 * i], r[HEAD + 2 * i + 1])
                else:
                    num += _entries_for(r[HEAD + 2 * i + 1])
        r += HEAD + 2 * r[NGRAM_MAX]
    return num
