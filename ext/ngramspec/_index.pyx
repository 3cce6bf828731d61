"""Index of the n-grams of one history: latest occurrence and the chain of earlier ones.

Extending costs one rolling hash step and one probe per token, finding the latest occurrence of
the last n tokens one probe, taking tokens back one probe each. Matches are confirmed by
comparing tokens. Used by ngram-simple, ngram-map-k and ngram-map-k4v.
"""

from libc.string cimport memcmp, memset

from ngramspec._hash cimport hash_fold, hash_power, hash_slide, hash_step, hash_tokens
from ngramspec._history cimport grow
from ngramspec._memory cimport ngs_release
from ngramspec._table cimport (
    HashCellC, table_check, table_clear, table_empty, table_find, table_free, table_home, table_nbytes, table_reserve,
)
from ngramspec._types cimport STATUS_NO_MEMORY, STATUS_OK, ngs_prefetch, token_t, uint32_t

cdef enum:
    TOGETHER = 16         # starts whose cells are fetched together


cdef void index_init(IndexC* x, Py_ssize_t n) noexcept nogil:
    memset(x, 0, sizeof(IndexC))
    x.n = n
    x.power = hash_power(n)


cdef Status index_reserve(IndexC* x, Py_ssize_t num_tokens, Py_ssize_t extra) noexcept nogil:
    """Make room for a history of num_tokens, `extra` of them new; index_extend up to that length cannot fail then."""
    if table_reserve(&x.table, num_tokens, extra) != STATUS_OK:
        return STATUS_NO_MEMORY
    return grow(<void**>&x.previous, &x.previous_capacity, num_tokens, sizeof(int32_t))


cdef inline void _insert(IndexC* x, uint32_t folded, Py_ssize_t start) noexcept nogil:
    cdef HashCellC* cell = table_find(&x.table, folded)
    x.previous[start] = <int32_t>cell.item - 1
    if cell.item == 0:
        cell.hash = folded
        x.table.num_used += 1
    cell.item = <uint32_t>start + 1


cdef void index_extend(IndexC* x, const HistoryC* h) noexcept nogil:
    """Index what has joined the history since the last call; cells are fetched for several starts at once."""
    cdef Py_ssize_t n = x.n
    cdef Py_ssize_t i = x.num_hashed
    cdef hash_t tail = x.tail
    cdef uint32_t[TOGETHER] folded
    cdef Py_ssize_t num, k
    while i < h.len and i < n:
        tail = hash_step(tail, h.tokens[i])
        i += 1
    while i < h.len:
        num = min(h.len - i, <Py_ssize_t>TOGETHER)
        for k in range(num):
            folded[k] = hash_fold(tail)
            ngs_prefetch(table_home(&x.table, folded[k]))
            tail = hash_slide(tail, h.tokens[i + k - n], h.tokens[i + k], x.power)
        for k in range(num):
            _insert(x, folded[k], i + k - n)
        i += num
    x.tail = tail
    x.num_hashed = h.len
    x.num_starts = h.len - n if h.len > n else 0


cdef void _remove_starts(IndexC* x, const HistoryC* h, Py_ssize_t first) noexcept nogil:
    """Take back the starts from `first` on: each cell returns to its latest start before."""
    cdef hash_t rolling = hash_tokens(h.tokens + first, x.n)
    cdef Py_ssize_t start, latest
    cdef HashCellC* cell
    for start in range(first, x.num_starts):
        cell = table_find(&x.table, hash_fold(rolling))
        latest = <Py_ssize_t>cell.item - 1
        if latest >= first:
            while latest >= first:
                latest = x.previous[latest]
            if latest < 0:
                table_empty(&x.table, cell)
            else:
                cell.item = <uint32_t>latest + 1
        rolling = hash_slide(rolling, h.tokens[start], h.tokens[start + x.n], x.power)


cdef void index_rewind(IndexC* x, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    """Forget what tokens from `length` on taught. Call it before the history is cut; extend after."""
    cdef Py_ssize_t keep = length - x.n if length > x.n else 0
    cdef Py_ssize_t removed = x.num_starts - keep
    if removed > 0:
        # About 10 ns to take one back, 1 ns to wipe a cell, 5 ns to index one again.
        if removed * 10 <= x.table.now.capacity + keep * 5:
            _remove_starts(x, h, keep)
            x.num_starts = keep
        else:
            table_clear(&x.table)
            x.num_starts = x.num_hashed = 0
            x.tail = 0
            return
    if length >= x.n:
        x.tail = hash_tokens(h.tokens + length - x.n, x.n)
    else:
        x.tail = hash_tokens(h.tokens, length)
    x.num_hashed = length


cdef inline bint _is_key(const IndexC* x, const HistoryC* h, Py_ssize_t start) noexcept nogil:
    return memcmp(h.tokens + start, h.tokens + h.len - x.n, <size_t>x.n * sizeof(token_t)) == 0


cdef Py_ssize_t index_latest(const IndexC* x, const HistoryC* h) noexcept nogil:
    """The latest earlier start of the last n tokens; -1 = none."""
    cdef Py_ssize_t start
    if x.num_starts == 0:
        return -1
    start = <Py_ssize_t>table_find(&x.table, hash_fold(x.tail)).item - 1
    if start >= 0 and not _is_key(x, h, start):
        return index_previous(x, h, start)
    return start


cdef Py_ssize_t index_previous(const IndexC* x, const HistoryC* h, Py_ssize_t start) noexcept nogil:
    """The occurrence of the last n tokens before `start`; -1 = none."""
    cdef Py_ssize_t earlier = x.previous[start]
    while earlier >= 0 and not _is_key(x, h, earlier):
        earlier = x.previous[earlier]
    return earlier


cdef bint index_has_hits(const IndexC* x, const HistoryC* h, Py_ssize_t latest, Py_ssize_t min_hits) noexcept nogil:
    """Whether the last n tokens occurred min_hits times before, the latest one included."""
    while min_hits > 1 and latest >= 0:
        latest = index_previous(x, h, latest)
        min_hits -= 1
    return latest >= 0


cdef const char* index_check(const IndexC* x, const HistoryC* h) noexcept nogil:
    """The first broken invariant, NULL when all hold. O(history)."""
    cdef Py_ssize_t expected = h.len - x.n if h.len > x.n else 0
    cdef const char* broken = table_check(&x.table, x.num_starts)
    cdef Py_ssize_t start
    if broken != NULL:
        return broken
    if x.num_starts != expected or x.num_hashed != h.len:
        return "index: number of starts differs from the history"
    if x.tail != hash_tokens(h.tokens + (h.len - x.n if h.len > x.n else 0), x.n if h.len > x.n else h.len):
        return "index: hash of the last n-gram is stale"
    for start in range(x.num_starts):
        if <Py_ssize_t>table_find(&x.table, hash_fold(hash_tokens(h.tokens + start, x.n))).item <= start:
            return "index: a start is missing"
        if x.previous[start] >= start:
            return "index: a chain runs forward"
    return NULL


cdef size_t index_nbytes(const IndexC* x) noexcept nogil:
    return table_nbytes(&x.table) + <size_t>x.previous_capacity * sizeof(int32_t)


cdef void index_free(IndexC* x) noexcept nogil:
    table_free(&x.table)
    ngs_release(x.previous, <size_t>x.previous_capacity * sizeof(int32_t))
    x.previous = NULL
    x.previous_capacity = 0
