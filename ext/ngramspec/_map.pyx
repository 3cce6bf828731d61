"""ngram-map-k and ngram-map-k4v: keys that remember how long their drafts may be.

ngram-map-k copies what followed the latest occurrence of the key (the last size_n tokens).
ngram-map-k4v lets the latest occurrences vote: it drafts only when one of at most max_values
continuations has half of the votes or more; of equal ones the newest wins. Both cap the length per key by what
was accepted; the cap shrinks on a rejection, doubles on a full acceptance, and never reaches 0.

Per call O(new tokens + draft + window). Source: llama.cpp common/ngram-map.cpp; differs in what
docs/differences.md lists (A1-A11).
"""

cimport cython
from libc.stdlib cimport calloc, free

from ngramspec._history cimport HistoryC, common_prefix, grow, history_continue
from ngramspec._index cimport (
    IndexC, index_check, index_extend, index_free, index_has_hits, index_init, index_latest,
    index_nbytes, index_previous, index_reserve, index_rewind,
)
from ngramspec._memory cimport ngs_release
from ngramspec._source cimport Joined, Source, SourceC, claim_copy, ignore_finish
from ngramspec._types cimport STATUS_NO_MEMORY, Status, ngs_prefetch, token_t, uint16_t

cdef enum:
    MAX_VALUES = 16       # upper bound of max_values
    MIN_CAP = 4           # a rejected key still drafts this many tokens, so that it can recover

cdef struct MapSlotC:
    IndexC index
    uint16_t* caps        # per start: longest draft of its n-gram as known there; inherited by later starts
    Py_ssize_t num_caps   # starts that have one; the index may be rebuilt beneath them
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


cdef Status _reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    cdef MapSlotC* s = &(<MapC*>state).slots[slot]
    if grow(<void**>&s.caps, &s.caps_capacity, h.len + extra, sizeof(uint16_t)) != 0:
        return STATUS_NO_MEMORY
    return index_reserve(&s.index, h.len + extra, extra)


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    cdef MapSlotC* s = &(<MapC*>state).slots[slot]
    cdef Py_ssize_t kept = length - s.index.n if length > s.index.n else 0
    if s.num_caps > kept:
        s.num_caps = kept
    index_rewind(&s.index, h, length)


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
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
    cdef Py_ssize_t start, known, shared, before, i
    while latest >= 0 and total < m.window:
        before = x.previous[latest]
        if before >= 0:
            ngs_prefetch(&x.previous[before])
            ngs_prefetch(&h.tokens[before])
        start = latest + x.n
        known = h.len - start if h.len - start < m.size_m else m.size_m
        for i in range(num_values):
            shared = known if known < values[i].len else values[i].len
            if common_prefix(h.tokens + start, h.tokens + values[i].start, shared) == shared:
                values[i].count += 1
                break
        else:
            if num_values < m.max_values:
                values[num_values] = ValueC(start, known, 1)
                num_values += 1
        total += 1
        latest = index_previous(x, h, latest)
    for i in range(1, num_values):
        if values[i].count > values[best].count:
            best = i
    return values[best].start if 2 * values[best].count >= total else -1


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit) noexcept nogil:
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


cdef void _feedback(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t right, bint rejected) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef MapSlotC* s = &m.slots[slot]
    cdef Py_ssize_t cap = s.cap
    if rejected:
        cap = 2 * right if 2 * right > MIN_CAP else MIN_CAP
    elif right == cap:
        cap = 2 * cap
    s.caps[s.key_start] = <uint16_t>(cap if cap < m.size_m else m.size_m)


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef MapSlotC* s = &m.slots[slot]
    cdef Py_ssize_t i
    if s.num_caps != s.index.num_starts:
        return "map: starts without a cap"
    for i in range(s.index.num_starts):
        if s.caps[i] < 1 or s.caps[i] > m.size_m:
            return "map: a cap is outside 1..size_m"
    return index_check(&s.index, h)


cdef size_t _nbytes(void* state) noexcept nogil:
    cdef MapC* m = <MapC*>state
    cdef size_t total = 0
    cdef Py_ssize_t i
    for i in range(m.num_slots):
        total += sizeof(MapSlotC) + index_nbytes(&m.slots[i].index)
        total += <size_t>m.slots[i].caps_capacity * sizeof(uint16_t)
    return total


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
                           <MapSlotC*>calloc(<size_t>slots, sizeof(MapSlotC)))
        if self._state.slots == NULL:
            raise MemoryError("ngram-map: no memory for the slots")
        for i in range(slots):
            index_init(&self._state.slots[i].index, size_n)
        self.c = SourceC(&self._state, size_m, _reserve, _rewind, _extend, _propose, NULL, _feedback, ignore_finish, _check,
                         _nbytes)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self._state.slots != NULL:
            for i in range(self._state.num_slots):
                index_free(&self._state.slots[i].index)
                ngs_release(self._state.slots[i].caps, <size_t>self._state.slots[i].caps_capacity * sizeof(uint16_t))
            free(self._state.slots)
