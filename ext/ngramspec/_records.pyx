"""Counts to and from flat int32 records, the body of llama.cpp's lookup-cache files.

The lock is held around kernels only: none of them takes the GIL, so no thread can wait for both.
Source of the layout: llama.cpp common/ngram-cache.cpp (common_ngram_cache_save and _load).
"""

from libc.stdlib cimport qsort

from ngramspec._counts cimport (
    NGRAM_MAX, CountsC, NgramC, counts_add, counts_find, counts_reserve, ngram_hash,
)
from ngramspec._types cimport (
    STATUS_NO_MEMORY, STATUS_OK, Status, int32_t, int64_t, ngs_give_way, ngs_lock, ngs_unlock, token_t,
)

import numpy as np

from ngramspec.errors import InputError

cdef int _by_token(const void* a, const void* b) noexcept nogil:
    cdef int32_t x = (<const int32_t*>a)[0]
    cdef int32_t y = (<const int32_t*>b)[0]
    return (x > y) - (x < y)


cdef Py_ssize_t _num_followers(const CountsC* c, const NgramC* g) noexcept nogil:
    cdef Py_ssize_t num = 0
    cdef int32_t item = g.followers
    if item < 0:
        return 1
    while item >= 0:
        num += 1
        item = c.followers[item].next
    return num


cdef Py_ssize_t _write_record(const CountsC* c, const NgramC* g, int32_t* out) noexcept nogil:
    """Write one record and return its length in int32."""
    cdef Py_ssize_t num = 0
    cdef int32_t item = g.followers
    cdef int32_t* pair = out + HEAD
    cdef Py_ssize_t i
    for i in range(NGRAM_MAX):
        out[i] = g.key[i]
    if item < 0:
        pair[0] = g.best
        pair[1] = g.best_count
        num = 1
    while item >= 0:
        pair[2 * num] = c.followers[item].token
        pair[2 * num + 1] = g.best_count if c.followers[item].token == g.best else c.followers[item].count
        num += 1
        item = c.followers[item].next
    qsort(pair, <size_t>num, 2 * sizeof(int32_t), _by_token)
    out[NGRAM_MAX] = <int32_t>num
    return HEAD + 2 * num


cdef object record_of(CountsC* c, int* lock, const token_t* newest, Py_ssize_t size):
    """The record of one n-gram as an int32 array, empty when it is unknown."""
    cdef Py_ssize_t room = 0
    cdef Py_ssize_t needed = HEAD + 2
    cdef const NgramC* g
    cdef int32_t[::1] out
    while needed > room:
        room = 2 * needed  # it may grow meanwhile
        array = np.empty(room, dtype=np.int32)
        out = array
        with nogil:
            ngs_lock(lock)
            g = counts_find(c, ngram_hash(newest, size), newest, size)
            needed = HEAD + 2 * _num_followers(c, g) if g != NULL else 0
            if 0 < needed <= room:
                _write_record(c, g, &out[0])
            ngs_unlock(lock)
    return array[:needed]


cdef PieceC piece_of(CountsC* c, int* lock):
    """A copy that begins: of the n-grams that there are now; room is the number of their further followers."""
    cdef PieceC piece = PieceC(0, 0, 0, 0)
    with nogil:
        ngs_lock(lock)
        piece.stop, piece.room = c.num_ngrams, c.num_followers
        ngs_unlock(lock)
    return piece


cdef Py_ssize_t _put_piece(const CountsC* c, PieceC* piece, int32_t* out) noexcept nogil:
    """Write the records of some n-grams from piece.at on; return how many int32 more must have room for the next one."""
    cdef const NgramC* g
    cdef Py_ssize_t needed
    cdef Py_ssize_t used = piece.used
    cdef Py_ssize_t stop = min(piece.at + PIECE, piece.stop, c.num_ngrams)
    if piece.at >= stop:  # forgotten meanwhile
        piece.at = piece.stop
    while piece.at < stop and piece.used - used < PIECE * HEAD:
        g = &c.ngrams[piece.at]
        if g.key[0] >= 0:
            needed = HEAD + 2 * _num_followers(c, g)
            if piece.used + needed > piece.room:
                return needed
            piece.used += _write_record(c, g, out + piece.used)
        piece.at += 1
    return 0


cdef object all_records(CountsC* c, int* lock):
    """All records, sorted by n-gram, as one int32 array. As entries_of_counts, in pieces."""
    cdef PieceC piece = piece_of(c, lock)
    cdef Py_ssize_t needed = 0
    cdef int32_t[::1] out
    piece.room = (HEAD + 2) * piece.stop + 2 * piece.room
    array = np.empty(piece.room + 1, dtype=np.int32)
    while piece.at < piece.stop:
        if needed:
            piece.room += piece.room // 2 + needed
            array = np.concatenate([array[:piece.used], np.empty(piece.room + 1 - piece.used, np.int32)])
        out = array
        with nogil:
            needed = 0
            while piece.at < piece.stop and needed == 0:
                ngs_lock(lock)
                needed = _put_piece(c, &piece, &out[0])
                if ngs_unlock(lock):
                    ngs_give_way(lock)
    return _sorted_records(array[:piece.used])


cdef object _starts(const int32_t[::1] records):
    """Where each record begins."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t num = 0
    array = np.empty(records.shape[0] // (HEAD + 2), dtype=np.int64)
    cdef int64_t[::1] starts = array
    while at < records.shape[0]:
        starts[num] = at
        num += 1
        at += HEAD + 2 * records[at + NGRAM_MAX]
    return array[:num]


cdef object _sorted_records(object records):
    cdef const int32_t[::1] old
    cdef int32_t[::1] new
    cdef const int64_t[::1] begins
    cdef Py_ssize_t i, j, at = 0
    starts = _starts(records)
    if not len(starts):
        return records
    order = np.lexsort([records[starts + k] for k in range(NGRAM_MAX - 1, -1, -1)])
    old = records
    result = np.empty_like(records)
    new = result
    begins = np.ascontiguousarray(starts[order])
    with nogil:
        for i in range(begins.shape[0]):
            for j in range(HEAD + 2 * old[begins[i] + NGRAM_MAX]):
                new[at] = old[begins[i] + j]
                at += 1
    return result


cdef const char* _invalid(const int32_t* r, Py_ssize_t left) noexcept nogil:
    """What is wrong with the record at r, NULL when nothing is."""
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t i
    if left < HEAD:
        return "the record is cut off in its n-gram"
    while size < NGRAM_MAX and r[size] >= 0:
        size += 1
    if size == 0:
        return "the n-gram is empty"
    for i in range(size, NGRAM_MAX):
        if r[i] != -1:
            return "a token id of the n-gram is negative"
    if r[NGRAM_MAX] < 1:
        return "the number of followers is not positive"
    if r[NGRAM_MAX] > (left - HEAD) // 2:
        return "the record is cut off in its followers"
    for i in range(r[NGRAM_MAX]):
        if r[HEAD + 2 * i] < 0:
            return "a follower's token id is negative"
        if r[HEAD + 2 * i + 1] < 1:
            return "a follower's count is not positive"
    return NULL


cdef void _add_record(CountsC* c, const int32_t* r) noexcept nogil:
    cdef Py_ssize_t size = 1
    cdef Py_ssize_t i
    while size < NGRAM_MAX and r[size] >= 0:
        size += 1
    for i in range(r[NGRAM_MAX]):
        counts_add(c, ngram_hash(r + size - 1, size), r + size - 1, size, r[HEAD + 2 * i], r[HEAD + 2 * i + 1])


cdef Status _add_some(CountsC* c, const int32_t[::1] records, Py_ssize_t* at) noexcept nogil:
    """Add records for one hold of the lock, for which others may have used what was reserved."""
    cdef Py_ssize_t end = at[0]
    cdef Py_ssize_t num_adds = 0
    while end < records.shape[0] and num_adds < PER_HOLD:
        num_adds += records[end + NGRAM_MAX]
        end += HEAD + 2 * records[end + NGRAM_MAX]
    if counts_reserve(c, num_adds) != STATUS_OK:
        return STATUS_NO_MEMORY
    while at[0] < end:
        _add_record(c, &records[at[0]])
        at[0] += HEAD + 2 * records[at[0] + NGRAM_MAX]
    return STATUS_OK


cdef Py_ssize_t _measure(const int32_t* records, Py_ssize_t n, Py_ssize_t* num_adds, const char** broken) noexcept nogil:
    """The number of records and of followers in all of them; stops at an invalid one, whose place it returns."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t num_records = 0
    num_adds[0] = 0
    while at < n:
        broken[0] = _invalid(records + at, n - at)
        if broken[0] != NULL:
            return at
        num_adds[0] += records[at + NGRAM_MAX]
        num_records += 1
        at += HEAD + 2 * records[at + NGRAM_MAX]
    return num_records


cdef (Py_ssize_t, Py_ssize_t) measure_records(object records) except *:
    """Numbers of records and of followers; InputError unless all records are valid."""
    cdef const int32_t[::1] view
    cdef const char* broken = NULL
    cdef Py_ssize_t num_adds = 0
    cdef Py_ssize_t num_records = 0
    try:
        view = records
    except (ValueError, TypeError, BufferError):
        raise InputError(f"records must be an int32 array of shape (m,), got {type(records).__name__} "
                         f"{getattr(records, 'dtype', '')}{getattr(records, 'shape', '')}") from None
    if view.shape[0]:
        with nogil:
            num_records = _measure(&view[0], view.shape[0], &num_adds, &broken)
    if broken != NULL:
        error = InputError(f"{broken.decode()}, at position {num_records} of records")
        error.reason = broken.decode()
        error.position = num_records
        raise error
    return num_records, num_adds


cdef object add_records(CountsC* c, int* lock, object records):
    """Check all records, then add them and return how many; nothing is added when one is invalid."""
    cdef Py_ssize_t num_records, num_adds
    cdef const int32_t[::1] view
    cdef Py_ssize_t at = 0
    cdef Status status
    num_records, num_adds = measure_records(records)
    view = records
    with nogil:
        ngs_lock(lock)
        status = counts_reserve(c, num_adds)
        ngs_unlock(lock)
        while at < view.shape[0] and status == STATUS_OK:
            ngs_lock(lock)
            status = _add_some(c, view, &at)
            if ngs_unlock(lock):
                ngs_give_way(lock)
    raise_for(status)
    return num_records


cdef object raise_for(Status status):
    """Raise what a failed counts_reserve means."""
    if status != STATUS_OK:
        raise MemoryError("ngram-cache: no memory for more n-grams")


def check_records(records):
    """Return the number of llama.cpp's records in an array: 4 tokens, F, F pairs of token and count.

    Args:
        records: int32, shape (m,), C-contiguous.

    Raises:
        InputError: Not a whole number of valid records; its `reason` says why, its `position` where,
            in int32 units.

    Cost: O(m). Threads: releases the GIL.
    """
    return measure_records(records)[0]
