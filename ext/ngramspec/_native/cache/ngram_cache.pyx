"""NgramCache: how often which token followed which n-gram, shared or loaded from a file.

Its counts go to and come from llama.cpp's lookup caches as int32 records
  4 x token (-1 after the last) | F | F x (token, count)
and packed entries (core.packing), which statistics files use. The lock is held around kernels only: none of them takes
the GIL, so no thread can wait for both.

Source of the records: llama.cpp common/ngram-cache.cpp (common_ngram_cache_save and _load).
"""

cimport cython
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memset

from ngramspec._native.cache.counts cimport (
    BLOCK, MAX_SHARDS, CountsC, FiguresC, FollowerC, NgramC, ShardC, SharedC, counts_add, counts_find, counts_reserve,
    ngram_hash, ngram_size, shared_check, shared_figures, shared_free, shared_init, shared_learn, shared_number,
    shared_order, shared_reserve, shared_shard,
)
from ngramspec._native.core.arguments cimport entries_view, token_view
from ngramspec._native.core.packing cimport (
    ENTRY_COUNT_MAX, OLDEST_SHIFT, STORED_TOKEN_MAX, EntryC, KeyC, entry_count, entry_follower, entry_of, key_of,
    key_tokens, sort_items, sum_equal,
)
from ngramspec._native.core.threads cimport locks_add, locks_remove
from ngramspec._native.core.types cimport (
    NGRAM_MAX, STATUS_OK, Status, count_t, int32_t, int64_t, ngs_give_way, ngs_lock, ngs_unlock, token_t, uint64_t,
    uint8_t,
)

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    HEAD = 5              # int32 before the pairs of a record
    PER_HOLD = 64         # followers added or copied per hold of a lock: who waits for it still spins then
    TOO_LARGE = -1        # returned instead of a number of entries if a token id is too large

# Progress of a copy of all n-grams.
cdef struct PieceC:
    Py_ssize_t at         # next n-gram of its shard
    Py_ssize_t stop       # the first one that is not copied
    int32_t follower      # of n-gram `at`, the next one if some are copied; -1 = none is
    Py_ssize_t record     # where its record begins
    Py_ssize_t used       # of `room`, in items written
    Py_ssize_t room


cdef int _by_token(const void* a, const void* b) noexcept nogil:
    cdef int32_t x = (<const int32_t*>a)[0]
    cdef int32_t y = (<const int32_t*>b)[0]
    return (x > y) - (x < y)


cdef bint _has_next(const CountsC* c, PieceC* piece, Py_ssize_t num) noexcept nogil:
    """Whether there is more to copy in this hold of the lock, after `num` steps; an n-gram with few followers is not cut."""
    if piece.at >= min(piece.stop, c.num_ngrams):
        piece.at = piece.stop
        return False
    return num < (PER_HOLD if piece.follower < 0 else 2 * PER_HOLD)


cdef const NgramC* _next_pair(const CountsC* c, const PieceC* piece, token_t* token, count_t* count) noexcept nogil:
    """Return the n-gram that is copied, and its next follower; NULL if it was dropped."""
    cdef const NgramC* g = &c.ngrams[piece.at]
    cdef int32_t item = piece.follower if piece.follower >= 0 else g.followers
    cdef const FollowerC* f
    if g.key[0] < 0:
        return NULL
    token[0], count[0] = g.best, g.best_count
    if item >= 0:
        f = &c.followers[item]
        if f.token < 0 or f.ngram != piece.at:
            return NULL
        if f.token != g.best:
            token[0], count[0] = f.token, f.count
    return g


cdef void _pass_pair(const CountsC* c, PieceC* piece) noexcept nogil:
    """Go on to the follower after the next one, or to the next n-gram."""
    cdef int32_t item = piece.follower if piece.follower >= 0 else c.ngrams[piece.at].followers
    piece.follower = c.followers[item].next if item >= 0 else -1
    piece.at += piece.follower < 0


cdef void _pass_ngram(PieceC* piece) noexcept nogil:
    piece.follower = -1
    piece.at += 1


cdef void _sort_followers(int32_t* record) noexcept nogil:
    """Called without a lock: there may be a hundred thousand."""
    qsort(record + HEAD, <size_t>record[NGRAM_MAX], 2 * sizeof(int32_t), _by_token)


cdef void _touch(void* out, size_t item, const PieceC* piece) noexcept nogil:
    """Write to the memory of the next hold before the lock is taken: the system may need milliseconds to find it."""
    memset(<char*>out + <size_t>piece.used * item, 0,
           min(<size_t>(piece.room - piece.used) * item, 2 * PER_HOLD * (HEAD + 2) * sizeof(int32_t)))


cdef PieceC _first_piece(Py_ssize_t room) noexcept nogil:
    return PieceC(at=0, stop=0, follower=-1, record=0, used=0, room=room)


cdef void _piece_begin(PieceC* piece, ShardC* shard) noexcept nogil:
    """Start on a shard: copy the n-grams that it has now."""
    ngs_lock(&shard.lock)
    piece.at, piece.stop, piece.follower = 0, shard.counts.num_ngrams, -1
    ngs_unlock(&shard.lock)


cdef Py_ssize_t _put_records_of(const CountsC* c, PieceC* piece, int32_t* out) noexcept nogil:
    """Write records from piece.at on, followers in no order; return 0, or how many int32 more are needed to go on."""
    cdef const NgramC* g
    cdef token_t token
    cdef count_t count
    cdef Py_ssize_t num = 0
    while _has_next(c, piece, num):
        num += 1
        g = _next_pair(c, piece, &token, &count)
        if g == NULL or (piece.follower >= 0 and memcmp(out + piece.record, g.key, sizeof(g.key)) != 0):
            _pass_ngram(piece)
            continue
        if piece.used + HEAD + 2 > piece.room:
            return PER_HOLD
        if piece.follower < 0:
            piece.record = piece.used
            memcpy(out + piece.record, g.key, sizeof(g.key))
            out[piece.record + NGRAM_MAX] = 0
            piece.used += HEAD
        out[piece.used], out[piece.used + 1] = token, count
        piece.used += 2
        out[piece.record + NGRAM_MAX] += 1
        _pass_pair(c, piece)
    return 0


cdef object _copy_records(ShardC* shard, PieceC* piece, object array):
    """Write the records of a shard's n-grams piece.at..piece.stop - 1; return the array, or a larger one."""
    cdef Py_ssize_t needed = 0
    cdef int32_t[::1] out
    while piece.at < piece.stop:
        if needed:
            piece.room += piece.room // 2 + needed
            array = np.concatenate([array[:piece.used], np.empty(piece.room - piece.used, np.int32)])
        out = array
        with nogil:
            needed = 0
            while piece.at < piece.stop and needed == 0:
                _touch(&out[0], sizeof(int32_t), piece)
                ngs_lock(&shard.lock)
                needed = _put_records_of(&shard.counts, piece, &out[0])
                if ngs_unlock(&shard.lock):
                    ngs_give_way(&shard.lock)
    return array


cdef object record_of(SharedC* x, const token_t* newest, Py_ssize_t size):
    """The record of one n-gram as an int32 array, empty when it is unknown."""
    cdef ShardC* shard = shared_shard(x, newest[0])
    cdef PieceC piece = _first_piece(2 * HEAD)
    cdef const NgramC* g
    cdef int32_t[::1] out
    cdef Py_ssize_t i
    with nogil:
        ngs_lock(&shard.lock)
        g = counts_find(&shard.counts, ngram_hash(newest, size), newest, size)
        if g != NULL:
            piece.at = g - shard.counts.ngrams
            piece.stop = piece.at + 1
        ngs_unlock(&shard.lock)
    array = _copy_records(shard, &piece, np.empty(piece.room, dtype=np.int32))
    out = array
    for i in range(size if piece.used else 0):
        if out[i] != newest[i + 1 - size]:  # it was dropped, and another one has taken its place
            piece.used = 0
    if piece.used:
        with nogil:
            _sort_followers(&out[0])
    return array[:piece.used]


cdef object all_records(SharedC* x):
    """All records, sorted by n-gram, as one int32 array. Copied in pieces as in entries_of_counts."""
    cdef FiguresC figures = shared_figures(x)
    cdef PieceC piece = _first_piece(HEAD + 2 + (HEAD + 2) * figures.num_ngrams + 2 * figures.num_followers)
    cdef int i
    array = np.empty(piece.room, dtype=np.int32)
    for i in range(x.num_shards):
        _piece_begin(&piece, &x.shards[i])
        array = _copy_records(&x.shards[i], &piece, array)
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
                new[at + j] = old[begins[i] + j]
            _sort_followers(&new[at])
            at += HEAD + 2 * new[at + NGRAM_MAX]
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


cdef inline Py_ssize_t _size_of(const int32_t* r) noexcept nogil:
    cdef Py_ssize_t size = 1
    while size < NGRAM_MAX and r[size] >= 0:
        size += 1
    return size


cdef void _add_record(CountsC* c, const int32_t* r, Py_ssize_t first, Py_ssize_t stop) noexcept nogil:
    """Count the followers first..stop - 1 of a record."""
    cdef Py_ssize_t size = _size_of(r)
    cdef Py_ssize_t i
    for i in range(first, stop):
        counts_add(c, ngram_hash(r + size - 1, size), r + size - 1, size, r[HEAD + 2 * i], r[HEAD + 2 * i + 1])


cdef inline int _shard_of(const SharedC* x, const int32_t* r) noexcept nogil:
    return shared_number(x, r[_size_of(r) - 1])


cdef Status _add_records(SharedC* x, const int32_t* records, const Py_ssize_t* begins, const uint8_t* numbers,
                         int num) noexcept nogil:
    """Add at most BLOCK records, PER_HOLD followers per hold of a lock."""
    cdef uint8_t[BLOCK] order
    cdef ShardC* shard
    cdef const int32_t* record
    cdef Py_ssize_t first = 0, left, stop  # followers of record i
    cdef Status status
    cdef int i = 0
    shared_order(numbers, num, order)
    while i < num:
        shard = &x.shards[numbers[order[i]]]
        left = PER_HOLD
        ngs_lock(&shard.lock)
        status = counts_reserve(&shard.counts, PER_HOLD)  # others may have used what was reserved
        while status == STATUS_OK and left and i < num and shard == &x.shards[numbers[order[i]]]:
            record = records + begins[order[i]]
            stop = min(first + left, <Py_ssize_t>record[NGRAM_MAX])
            _add_record(&shard.counts, record, first, stop)
            left -= stop - first
            first = stop
            if first == record[NGRAM_MAX]:
                first = 0
                i += 1
        if ngs_unlock(&shard.lock):
            ngs_give_way(&shard.lock)
        if status != STATUS_OK:
            return status
    return STATUS_OK


cdef Status _add_all(SharedC* x, const int32_t* records, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t[BLOCK] begins
    cdef uint8_t[BLOCK] numbers
    cdef Py_ssize_t at = 0
    cdef Status status = STATUS_OK
    cdef int num
    while at < n and status == STATUS_OK:
        num = 0
        while at < n and num < BLOCK:
            begins[num] = at
            numbers[num] = <uint8_t>_shard_of(x, records + at)
            at += HEAD + 2 * records[at + NGRAM_MAX]
            num += 1
        status = _add_records(x, records, begins, numbers, num)
    return status


cdef Status _reserve_records(SharedC* x, const int32_t* records, Py_ssize_t n) noexcept nogil:
    """Make room for all records before the first is added."""
    cdef Py_ssize_t[MAX_SHARDS] num_adds
    cdef Py_ssize_t at = 0
    memset(num_adds, 0, sizeof(num_adds))
    while at < n:
        num_adds[_shard_of(x, records + at)] += records[at + NGRAM_MAX]
        at += HEAD + 2 * records[at + NGRAM_MAX]
    return shared_reserve(x, num_adds)


cdef Py_ssize_t _measure(const int32_t* records, Py_ssize_t n, Py_ssize_t* num_adds, const char** broken) noexcept nogil:
    """Count records and all their followers; at an invalid record stop and return its position."""
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
        if records is None:  # a view can be None too, without records
            raise TypeError
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


cdef object add_records(SharedC* x, object records):
    """Check all records, then add them and return how many; nothing is added when one is invalid."""
    cdef Py_ssize_t num_records = measure_records(records)[0]
    cdef const int32_t[::1] view = records
    cdef Status status = STATUS_OK
    if num_records:
        with nogil:
            status = _reserve_records(x, &view[0], view.shape[0])
            if status == STATUS_OK:
                status = _add_all(x, &view[0], view.shape[0])
    raise_for(status)
    return num_records


cdef object raise_for(Status status):
    """Raise MemoryError if the status of a reservation is not STATUS_OK."""
    if status != STATUS_OK:
        raise MemoryError("ngram-cache: no memory for more n-grams")


def check_records(records):
    """Return the number of llama.cpp's records in an array, each 4 tokens, F, F pairs of token and count.

    Args:
        records: int32, shape (m,), C-contiguous.

    Raises:
        InputError: Not a whole number of valid records; its `reason` says why, its `position` where,
            in int32 units.

    Cost: O(m). Threads: releases the GIL.
    """
    return measure_records(records)[0]


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


cdef Py_ssize_t _put_entries_of(const CountsC* c, Py_ssize_t size, PieceC* piece, EntryC* out) noexcept nogil:
    """Write the entries of n-grams of a size from piece.at on; return 0, or how many more are needed to go on.

    TOO_LARGE: a token id is too large.
    """
    cdef const NgramC* g
    cdef token_t token
    cdef count_t count
    cdef Py_ssize_t num = 0
    while _has_next(c, piece, num):
        num += 1
        g = _next_pair(c, piece, &token, &count)
        if g == NULL or ngram_size(g) != size:
            _pass_ngram(piece)
            continue
        if token > STORED_TOKEN_MAX or _too_large(g.key, size):
            return TOO_LARGE
        if piece.used + _entries_for(count) > piece.room:
            return _entries_for(count)
        piece.used += _put(out + piece.used, key_of(&g.key[size - 1], size), token, count)
        _pass_pair(c, piece)
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

    Other threads can keep learning: n-grams added to a shard after its copy began are left out, and the lock is
    held for some PER_HOLD followers at a time. An n-gram with up to PER_HOLD of them is copied at one moment.
    """
    cdef FiguresC figures = shared_figures(x)
    # More than enough, unless counts are very large.
    cdef PieceC piece = _first_piece(figures.num_ngrams + figures.num_followers)
    cdef Py_ssize_t needed = 0
    cdef ShardC* shard
    cdef uint64_t[:, ::1] out
    cdef int i
    entries = np.empty((piece.room + 1, 2), dtype=np.uint64)
    for i in range(x.num_shards):
        shard = &x.shards[i]
        _piece_begin(&piece, shard)
        while piece.at < piece.stop:
            if needed:
                piece.room += piece.room // 2 + needed
                entries = np.concatenate([entries[:piece.used], np.empty((piece.room + 1 - piece.used, 2), np.uint64)])
            out = entries
            with nogil:
                needed = 0
                while piece.at < piece.stop and needed == 0:
                    _touch(&out[0, 0], sizeof(EntryC), &piece)
                    ngs_lock(&shard.lock)
                    needed = _put_entries_of(&shard.counts, size, &piece, <EntryC*>&out[0, 0])
                    if ngs_unlock(&shard.lock):
                        ngs_give_way(&shard.lock)
            if needed < 0:
                raise _too_large_error()
    return _sorted(entries[:piece.used])


cdef inline token_t _newest(const EntryC* e, Py_ssize_t size) noexcept nogil:
    cdef token_t[NGRAM_MAX] tokens
    key_tokens(e.a, e.b >> OLDEST_SHIFT, size, tokens)
    return tokens[size - 1]


cdef void _add_entry(CountsC* c, const EntryC* e, Py_ssize_t size) noexcept nogil:
    cdef token_t[NGRAM_MAX] tokens
    key_tokens(e.a, e.b >> OLDEST_SHIFT, size, tokens)
    counts_add(c, ngram_hash(&tokens[size - 1], size), &tokens[size - 1], size, entry_follower(e), entry_count(e))


cdef Status _add_entries(SharedC* x, const EntryC* entries, int num, Py_ssize_t size) noexcept nogil:
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


cdef Status _reserve_entries(SharedC* x, const EntryC* entries, Py_ssize_t n, Py_ssize_t size) noexcept nogil:
    """Make room for all entries before the first is added."""
    cdef Py_ssize_t[MAX_SHARDS] num_adds
    cdef Py_ssize_t i
    memset(num_adds, 0, sizeof(num_adds))
    for i in range(n):
        num_adds[shared_number(x, _newest(&entries[i], size))] += 1
    return shared_reserve(x, num_adds)


cdef int add_entries(SharedC* x, object entries, Py_ssize_t size) except -1:
    """Add all entries, of n-grams of one size."""
    cdef const uint64_t[:, ::1] view = entries_view(entries)
    cdef const EntryC* e
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t n = view.shape[0]
    cdef Status status
    if n == 0:
        return 0
    e = <const EntryC*>&view[0, 0]
    with nogil:
        status = _reserve_entries(x, e, n, size)
        while at < n and status == STATUS_OK:
            status = _add_entries(x, e + at, <int>min(BLOCK, n - at), size)
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
    entries = np.empty((num + 1, 2), dtype=np.uint64)
    out = entries
    with nogil:
        _put_records(&view[0], view.shape[0], size, <EntryC*>&out[0, 0], True)
    return _sorted(entries[:num])


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
