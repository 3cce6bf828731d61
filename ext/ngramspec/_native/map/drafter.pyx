"""ngram-simple, ngram-map-k and ngram-map-k4v: copy what followed an earlier occurrence.

All three look up the last size_n tokens in an index of the slot's history: latest occurrence and the
chain of earlier ones. Extending it costs one rolling hash step and one probe per token, a lookup one
probe, removing tokens one probe each; matches are confirmed by comparing tokens.

ngram-simple copies what followed the latest occurrence. llama.cpp scans the history at each step;
here the copy continues past the end of the history, position 0 counts, and min_hits is obeyed.

ngram-map-k and ngram-map-k4v have keys that remember how long their drafts may be: the cap of a key
shrinks on a rejection, doubles on a full acceptance, and never reaches 0. ngram-map-k copies what
followed the latest occurrence of the key. ngram-map-k4v lets the latest occurrences vote: it drafts
only when one of at most max_values continuations has half of the votes or more; on ties the
newest wins.

Per call O(new tokens + draft + window). Source: llama.cpp common/ngram-map.cpp; differences
are listed in docs/reference/differences.md (A1-A11).
"""

cimport cython
from libc.string cimport memcmp, memset

from ngramspec._native.core.hash cimport (
    HASH_SEED, CellsC, HashCellC, TableC, hash_fold, hash_power, hash_slide, hash_step, hash_tokens, table_check,
    table_clear, table_empty, table_find, table_find_in, table_free, table_home, table_nbytes, table_reserve,
)
from ngramspec._native.core.history cimport HistoryC, common_prefix, history_continue
from ngramspec._native.core.memory cimport grow
from ngramspec._native.core.types cimport (
    STATUS_NO_MEMORY, STATUS_OK, Status, hash_t, int32_t, ngs_prefetch, ngs_release, token_t, uint16_t, uint32_t,
)
from ngramspec._native.drafter.source cimport Source, claim_copy

cdef enum:
    TOGETHER = 16         # starts whose cells are fetched together
    MAX_VALUES = 16       # upper bound of max_values
    MIN_CAP = 4           # a rejected key still drafts this many tokens, so that it can recover

cdef struct IndexC:
    TableC table          # folded hash of an n-gram -> start of its latest occurrence
    int32_t* previous     # per start: the previous start with the same hash, -1 = none; owned
    Py_ssize_t previous_capacity
    Py_ssize_t num_starts  # starts 0..num_starts-1 are indexed: all that have a token after the n-gram
    Py_ssize_t num_hashed  # tokens of the history that `tail` has seen
    hash_t tail           # hash of the last n tokens seen (of all of them while fewer than n)
    hash_t power          # HASH_SEED^n
    Py_ssize_t n          # n-gram size, >= 1

cdef struct SimpleC:
    Py_ssize_t min_hits   # occurrences needed
    Py_ssize_t num_slots
    IndexC* indexes       # one per slot

cdef struct MapSlotC:
    IndexC index
    uint16_t* caps        # per start: longest draft of its n-gram as known there; inherited by later starts
    Py_ssize_t num_caps   # starts that have a cap; they keep it when the index is rebuilt
    Py_ssize_t caps_capacity
    Py_ssize_t key_start  # latest start of the key of the last draft; its cap takes the feedback
    Py_ssize_t cap        # cap in force for the last draft

cdef struct ValueC:
    Py_ssize_t start      # first token of the continuation, its newest occurrence
    Py_ssize_t len        # tokens of it that are known, 1..size_m
    Py_ssize_t count      # occurrences seen

cdef struct MapC:
    Py_ssize_t size_m
    Py_ssize_t min_hits
    Py_ssize_t max_values  # 1: ngram-map-k, more: ngram-map-k4v
    Py_ssize_t window     # occurrences that vote
    Py_ssize_t num_slots
    MapSlotC* slots


cdef void index_init(IndexC* x, Py_ssize_t n) noexcept nogil:
    memset(x, 0, sizeof(IndexC))
    x.n = n
    x.power = hash_power(n, HASH_SEED)


cdef Status index_reserve(IndexC* x, Py_ssize_t num_tokens, Py_ssize_t extra) noexcept nogil:
    """Make room for a history of num_tokens, `extra` of them new, so that index_extend up to it cannot fail."""
    if table_reserve(&x.table, num_tokens, extra) != STATUS_OK:
        return STATUS_NO_MEMORY
    return grow(<void**>&x.previous, &x.previous_capacity, num_tokens, sizeof(int32_t))


cdef inline void _insert(IndexC* x, HashCellC* cell, uint32_t folded, Py_ssize_t start) noexcept nogil:
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
    cdef hash_t factor = HASH_SEED
    cdef uint32_t[TOGETHER] folded
    cdef bint grows = x.table.old.capacity != 0  # otherwise all cells are in `now`
    cdef CellsC* now = &x.table.now
    cdef Py_ssize_t num, k
    while i < h.len and i < n:
        tail = hash_step(tail, h.tokens[i], factor)
        i += 1
    while i < h.len:
        num = min(h.len - i, <Py_ssize_t>TOGETHER)
        for k in range(num):
            folded[k] = hash_fold(tail)
            ngs_prefetch(table_home(&x.table, folded[k]) if grows else &now.cells[folded[k] >> now.shift])
            tail = hash_slide(tail, h.tokens[i + k - n], h.tokens[i + k], x.power, factor)
        for k in range(num):
            _insert(x, table_find(&x.table, folded[k]) if grows else table_find_in(now, folded[k]), folded[k], i + k - n)
        i += num
    x.tail = tail
    x.num_hashed = h.len
    x.num_starts = h.len - n if h.len > n else 0


cdef void _remove_starts(IndexC* x, const HistoryC* h, Py_ssize_t first) noexcept nogil:
    """Remove the starts from `first` on: each cell gets its latest earlier start."""
    cdef hash_t rolling = hash_tokens(h.tokens + first, x.n, HASH_SEED)
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
        rolling = hash_slide(rolling, h.tokens[start], h.tokens[start + x.n], x.power, HASH_SEED)


cdef void index_rewind(IndexC* x, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    """Forget the tokens from `length` on. Call it before the history is cut, index_extend after."""
    cdef Py_ssize_t keep = length - x.n if length > x.n else 0
    cdef Py_ssize_t removed = x.num_starts - keep
    if removed > 0:
        # About 10 ns to remove a start, 1 ns to clear a cell, 5 ns to index a start again.
        if removed * 10 <= x.table.now.capacity + keep * 5:
            _remove_starts(x, h, keep)
            x.num_starts = keep
        else:
            table_clear(&x.table)
            x.num_starts = x.num_hashed = 0
            x.tail = 0
            return
    if length >= x.n:
        x.tail = hash_tokens(h.tokens + length - x.n, x.n, HASH_SEED)
    else:
        x.tail = hash_tokens(h.tokens, length, HASH_SEED)
    x.num_hashed = length


cdef inline bint _is_key(const IndexC* x, const HistoryC* h, Py_ssize_t start) noexcept nogil:
    return memcmp(h.tokens + start, h.tokens + h.len - x.n, <size_t>x.n * sizeof(token_t)) == 0


cdef Py_ssize_t index_latest(const IndexC* x, const HistoryC* h) noexcept nogil:
    """The latest earlier start of the last n tokens; -1 = none."""
    cdef hash_t tail = x.tail
    cdef Py_ssize_t start
    if x.num_starts == 0:
        return -1
    if x.num_hashed < h.len:  # another source's draft comes last
        tail = hash_tokens(h.tokens + h.len - x.n, x.n, HASH_SEED)
    start = <Py_ssize_t>table_find(&x.table, hash_fold(tail)).item - 1
    if start >= 0 and not _is_key(x, h, start):
        return index_previous(x, h, start)
    return start


cdef Py_ssize_t index_previous(const IndexC* x, const HistoryC* h, Py_ssize_t start) noexcept nogil:
    """The next earlier occurrence of the last n tokens; -1 = none."""
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
    cdef Py_ssize_t last = min(h.len, x.n)
    cdef const char* broken = table_check(&x.table, x.num_starts)
    cdef Py_ssize_t start
    if broken != NULL:
        return broken
    if x.num_starts != expected or x.num_hashed != h.len:
        return "index: number of starts differs from the history"
    if x.tail != hash_tokens(h.tokens + h.len - last, last, HASH_SEED):
        return "index: hash of the last n-gram is stale"
    for start in range(x.num_starts):
        if <Py_ssize_t>table_find(&x.table, hash_fold(hash_tokens(h.tokens + start, x.n, HASH_SEED))).item <= start:
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


cdef Status _simple_reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    return index_reserve(&(<SimpleC*>state).indexes[slot], h.len + extra, extra)


cdef void _simple_rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    index_rewind(&(<SimpleC*>state).indexes[slot], h, length)


cdef void _simple_index(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    index_extend(&(<SimpleC*>state).indexes[slot], h)


cdef Py_ssize_t _simple_propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                                Py_ssize_t limit, int lane) noexcept nogil:
    cdef SimpleC* s = <SimpleC*>state
    cdef IndexC* x = &s.indexes[slot]
    cdef Py_ssize_t latest = index_latest(x, h)
    if latest < 0 or not index_has_hits(x, h, latest, s.min_hits):
        return 0
    history_continue(h, latest + x.n, out, limit)
    claim_copy(h, latest + x.n, confidence, limit)
    return limit


cdef const char* _simple_check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    return index_check(&(<SimpleC*>state).indexes[slot], h)


cdef size_t _simple_nbytes(void* state) noexcept nogil:
    cdef SimpleC* s = <SimpleC*>state
    cdef size_t total = 0
    cdef Py_ssize_t i
    for i in range(s.num_slots):
        total += sizeof(IndexC) + index_nbytes(&s.indexes[i])
    return total


cdef void _simple_release(void* state, Py_ssize_t slot) noexcept nogil:
    index_free(&(<SimpleC*>state).indexes[slot])


@cython.final
cdef class SimpleSource(Source):
    """SimpleSource(slots, size_n, size_m, min_hits): the source behind "ngram-simple".

    Args:
        slots: Number of slots, >= 1.
        size_n: Tokens matched, >= 1.
        size_m: Longest draft, in tokens, >= 1.
        min_hits: Earlier occurrences needed before anything is drafted, >= 1.

    Raises:
        MemoryError: The state cannot be allocated.
    """

    cdef SimpleC _state

    def __cinit__(self, Py_ssize_t slots, Py_ssize_t size_n, Py_ssize_t size_m, Py_ssize_t min_hits):
        cdef Py_ssize_t i
        self.name = "ngram-simple"
        self.slots = slots
        self._state = SimpleC(min_hits, slots, <IndexC*>self.take(slots, sizeof(IndexC)))
        for i in range(slots):
            index_init(&self._state.indexes[i], size_n)
        self.c.state, self.c.max_draft = &self._state, size_m
        self.c.reserve, self.c.rewind = _simple_reserve, _simple_rewind
        self.c.index = _simple_index
        self.c.propose = _simple_propose
        self.c.check, self.c.nbytes = _simple_check, _simple_nbytes
        self.c.release = _simple_release

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._state.num_slots):
            _simple_release(&self._state, i)


cdef Status _map_reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    cdef MapSlotC* s = &(<MapC*>state).slots[slot]
    if grow(<void**>&s.caps, &s.caps_capacity, h.len + extra, sizeof(uint16_t)) != 0:
        return STATUS_NO_MEMORY
    return index_reserve(&s.index, h.len + extra, extra)


cdef void _map_rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    cdef MapSlotC* s = &(<MapC*>state).slots[slot]
    cdef Py_ssize_t num_starts = length - s.index.n if length > s.index.n else 0
    if s.num_caps > num_starts:
        s.num_caps = num_starts
    index_rewind(&s.index, h, length)


cdef void _map_index(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef MapSlotC* s = &m.slots[slot]
    cdef Py_ssize_t i, previous
    index_extend(&s.index, h)
    for i in range(s.num_caps, s.index.num_starts):
        previous = s.index.previous[i]
        s.caps[i] = s.caps[previous] if previous >= 0 else <uint16_t>m.size_m
    s.num_caps = s.index.num_starts


cdef Py_ssize_t _vote(const MapC* m, const IndexC* x, const HistoryC* h, Py_ssize_t latest) noexcept nogil:
    """The start of the continuation with at least half of the votes; -1 = none has."""
    cdef ValueC[MAX_VALUES] values
    cdef Py_ssize_t num_values = 0
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t best = 0
    cdef Py_ssize_t start, length, shared, before, i
    while latest >= 0 and total < m.window:
        before = x.previous[latest]
        if before >= 0:
            ngs_prefetch(&x.previous[before])
            ngs_prefetch(&h.tokens[before])
        start = latest + x.n
        length = h.len - start if h.len - start < m.size_m else m.size_m
        for i in range(num_values):
            shared = length if length < values[i].len else values[i].len
            if common_prefix(h.tokens + start, h.tokens + values[i].start, shared) == shared:
                values[i].count += 1
                break
        else:
            if num_values < m.max_values:
                values[num_values] = ValueC(start, length, 1)
                num_values += 1
        total += 1
        latest = index_previous(x, h, latest)
    for i in range(1, num_values):
        if values[i].count > values[best].count:
            best = i
    return values[best].start if 2 * values[best].count >= total else -1


cdef Py_ssize_t _map_propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                             Py_ssize_t limit, int lane) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef MapSlotC* s = &m.slots[slot]
    cdef Py_ssize_t latest = index_latest(&s.index, h)
    cdef Py_ssize_t start
    if latest < 0 or not index_has_hits(&s.index, h, latest, m.min_hits):
        return 0
    start = latest + s.index.n if m.max_values == 1 else _vote(m, &s.index, h, latest)
    if start < 0:
        return 0
    s.key_start = latest
    s.cap = s.caps[latest]
    if limit > s.cap:
        limit = s.cap
    history_continue(h, start, out, limit)
    claim_copy(h, start, confidence, limit)
    return limit


cdef void _map_feedback(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t right, bint rejected) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef MapSlotC* s = &m.slots[slot]
    cdef Py_ssize_t cap = s.cap
    if rejected:
        cap = 2 * right if 2 * right > MIN_CAP else MIN_CAP
    elif right == cap:
        cap = 2 * cap
    s.caps[s.key_start] = <uint16_t>(cap if cap < m.size_m else m.size_m)


cdef const char* _map_check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef MapSlotC* s = &m.slots[slot]
    cdef Py_ssize_t i
    if s.num_caps != s.index.num_starts:
        return "map: starts without a cap"
    for i in range(s.index.num_starts):
        if s.caps[i] < 1 or s.caps[i] > m.size_m:
            return "map: a cap is outside 1..size_m"
    return index_check(&s.index, h)


cdef size_t _map_nbytes(void* state) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef size_t total = 0
    cdef Py_ssize_t i
    for i in range(m.num_slots):
        total += sizeof(MapSlotC) + index_nbytes(&m.slots[i].index)
        total += <size_t>m.slots[i].caps_capacity * sizeof(uint16_t)
    return total


cdef void _map_release(void* state, Py_ssize_t slot) noexcept nogil:
    cdef MapSlotC* s = &(<MapC*>state).slots[slot]
    index_free(&s.index)
    ngs_release(s.caps, <size_t>s.caps_capacity * sizeof(uint16_t))
    s.caps = NULL
    s.caps_capacity = 0


@cython.final
cdef class MapSource(Source):
    """MapSource(slots, size_n, size_m, min_hits, max_values, window): "ngram-map-k" and "ngram-map-k4v".

    Args:
        slots: Number of slots, >= 1.
        size_n: Tokens of a key, >= 1.
        size_m: Longest draft, in tokens, 1..65535.
        min_hits: Earlier occurrences needed before anything is drafted, >= 1.
        max_values: Continuations told apart per key, 1..16; 1 makes it ngram-map-k.
        window: Latest occurrences that vote, >= 1.

    Raises:
        MemoryError: The state cannot be allocated.
    """

    cdef MapC _state

    def __cinit__(self, Py_ssize_t slots, Py_ssize_t size_n, Py_ssize_t size_m, Py_ssize_t min_hits,
                  Py_ssize_t max_values, Py_ssize_t window):
        cdef Py_ssize_t i
        self.name = "ngram-map-k" if max_values == 1 else "ngram-map-k4v"
        self.slots = slots
        self._state = MapC(size_m, min_hits, max_values, window, slots,
                           <MapSlotC*>self.take(slots, sizeof(MapSlotC)))
        for i in range(slots):
            index_init(&self._state.slots[i].index, size_n)
        self.c.state, self.c.max_draft = &self._state, size_m
        self.c.reserve, self.c.rewind = _map_reserve, _map_rewind
        self.c.index = _map_index
        self.c.propose = _map_propose
        self.c.feedback = _map_feedback
        self.c.check, self.c.nbytes = _map_check, _map_nbytes
        self.c.release = _map_release

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._state.num_slots):
            _map_release(&self._state, i)
