"""ngram-mod: walk a HashPool from the last n_match tokens, one token per lookup.

Every slot writes what it sees into the pool at once and reads what all others wrote. A draft
needs n_min tokens in a row that the pool predicts: those drafted now, and those of the newest output
that it would have drafted (the streak). Per call O(new tokens + draft).
Source: llama.cpp common/ngram-mod.cpp, common/speculative.cpp; differences are listed in
docs/reference/differences.md (B1-B6).
"""

cimport cython

from ngramspec._native.core.hash cimport LCG, hash_power, hash_slide, hash_step, hash_tokens
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.types cimport hash_t, ngs_prefetch, token_t
from ngramspec._native.drafter.source cimport JOINED_AGAIN, JOINED_OUTPUT, Joined, Source
from ngramspec._native.mod.pool cimport (
    HashPool, PoolC, PoolShareC, pool_commit, pool_confidence, pool_insert, pool_lookup,
)

cdef enum:
    AHEAD = 32            # prompt tokens whose pool cells are fetched together; a power of two

cdef float[4] CLAIMS = [0.6, 0.75, 0.85, 0.9]  # by the cell's confidence

cdef struct ModSlotC:
    Py_ssize_t num_hashed  # tokens of the history that `tail` has seen
    hash_t tail           # hash of the last n_match tokens seen (of all while fewer)
    Py_ssize_t streak     # newest committed tokens in a row that the pool had predicted

cdef struct ModC:
    PoolC* pool
    PoolShareC* share     # where this source counts what it inserts
    Py_ssize_t n_match
    Py_ssize_t n_min
    Py_ssize_t n_max
    hash_t power          # LCG^n_match
    Py_ssize_t num_slots
    ModSlotC* slots


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    """The pool keeps what it learned; only the slot's position moves."""
    cdef ModC* m = <ModC*>state
    cdef ModSlotC* s = &m.slots[slot]
    cdef Py_ssize_t start = length - m.n_match if length > m.n_match else 0
    s.tail = hash_tokens(h.tokens + start, length - start, LCG)
    s.num_hashed = length
    s.streak = 0


cdef void _insert_prompt(ModC* m, ModSlotC* s, const HistoryC* h) noexcept nogil:
    """Insert all n-grams of the new part; each cell is fetched AHEAD tokens before it is written."""
    cdef hash_t[AHEAD] hashes
    cdef const token_t* tokens = h.tokens
    cdef hash_t tail = s.tail
    cdef Py_ssize_t n = m.n_match
    cdef Py_ssize_t i = s.num_hashed
    cdef Py_ssize_t first
    while i < h.len and i < n:
        tail = hash_step(tail, tokens[i], LCG)
        i += 1
    first = i
    for i in range(first, h.len):
        if i >= first + AHEAD:
            pool_insert(m.pool, hashes[i % AHEAD], tokens[i - AHEAD], m.share)
        hashes[i % AHEAD] = tail
        ngs_prefetch(&m.pool.cells[tail & m.pool.mask])
        tail = hash_slide(tail, tokens[i - n], tokens[i], m.power, LCG)
    for i in range(h.len - AHEAD if h.len - AHEAD > first else first, h.len):
        pool_insert(m.pool, hashes[i % AHEAD], tokens[i], m.share)
    s.tail = tail
    s.num_hashed = h.len
    s.streak = 0
    pool_commit(m.pool, m.share)


cdef void _insert_committed(ModC* m, ModSlotC* s, const HistoryC* h) noexcept nogil:
    cdef const token_t* tokens = h.tokens
    cdef Py_ssize_t i = s.num_hashed
    for i in range(i, h.len):
        if i < m.n_match:
            s.tail = hash_step(s.tail, tokens[i], LCG)
            continue
        s.streak = s.streak + 1 if pool_lookup(m.pool, s.tail) == tokens[i] else 0
        pool_insert(m.pool, s.tail, tokens[i], m.share)
        s.tail = hash_slide(s.tail, tokens[i - m.n_match], tokens[i], m.power, LCG)
    s.num_hashed = h.len
    pool_commit(m.pool, m.share)


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
    cdef ModC* m = <ModC*>state
    if how == JOINED_OUTPUT:
        _insert_committed(m, &m.slots[slot], h)
    elif how == JOINED_AGAIN:  # inserting it again would count the same occurrence twice
        _rewind(state, slot, h, h.len)
    else:
        _insert_prompt(m, &m.slots[slot], h)


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit, int lane) noexcept nogil:
    cdef ModC* m = <ModC*>state
    cdef ModSlotC* s = &m.slots[slot]
    cdef const token_t* leaving = h.tokens + h.len - m.n_match
    cdef hash_t tail = s.tail
    cdef Py_ssize_t streak = s.streak, needed, most, i
    cdef token_t token
    if h.len < m.n_match:
        return 0
    for i in range(s.num_hashed, h.len):  # another source's draft
        if i < m.n_match:
            tail = hash_step(tail, h.tokens[i], LCG)
            continue
        streak = streak + 1 if pool_lookup(m.pool, tail) == h.tokens[i] else 0
        tail = hash_slide(tail, h.tokens[i - m.n_match], h.tokens[i], m.power, LCG)
    needed = m.n_min - streak
    most = min(max(limit, needed), m.n_max)
    i = 0
    while i < most:
        token = pool_lookup(m.pool, tail)
        if token < 0:
            break
        out[i] = token
        confidence[i] = CLAIMS[pool_confidence(m.pool, tail)]
        tail = hash_slide(tail, leaving[i] if i < m.n_match else out[i - m.n_match], token, m.power, LCG)
        i += 1
    if i < needed:
        return 0
    return i if i < limit else limit


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef ModC* m = <ModC*>state
    cdef ModSlotC* s = &m.slots[slot]
    cdef Py_ssize_t start = h.len - m.n_match if h.len > m.n_match else 0
    if s.num_hashed != h.len:
        return "mod: tokens of the history were not hashed"
    if s.tail != hash_tokens(h.tokens + start, h.len - start, LCG):
        return "mod: hash of the last n-gram is stale"
    return NULL


cdef size_t _nbytes(void* state) noexcept nogil:
    return <size_t>(<ModC*>state).num_slots * sizeof(ModSlotC)


@cython.final
@cython.no_gc_clear  # __dealloc__ must still see the pool
cdef class ModSource(Source):
    """ModSource(slots, pool, n_match, n_min, n_max): the source behind "ngram-mod".

    Args:
        slots: Number of slots, >= 1.
        pool: The HashPool to read and write; kept alive. Other sources can share it.
        n_match: Tokens hashed per lookup, >= 1.
        n_min: Tokens in a row that the pool must know before anything is drafted, >= 0.
        n_max: Longest draft, in tokens, >= 1.

    Raises:
        MemoryError: The state cannot be allocated.
    """

    cdef ModC _state
    cdef PoolShareC _own          # used when the pool has no share left
    cdef readonly HashPool pool

    def __cinit__(self, Py_ssize_t slots, HashPool pool not None, Py_ssize_t n_match, Py_ssize_t n_min, Py_ssize_t n_max):
        self.name = "ngram-mod"
        self.slots = slots
        self.pool = pool
        # As in llama.cpp, n_min > n_max means full drafts only.
        self._state.pool, self._state.share = &pool.c, pool.join(&self._own)
        self._state.n_match, self._state.power = n_match, hash_power(n_match, LCG)
        self._state.n_min, self._state.n_max = min(n_min, n_max), n_max
        self._state.num_slots, self._state.slots = slots, <ModSlotC*>self.take(slots, sizeof(ModSlotC))
        self.c.state, self.c.max_draft = &self._state, n_max
        self.c.rewind = _rewind
        self.c.extend = _extend
        self.c.propose = _propose
        self.c.check, self.c.nbytes = _check, _nbytes

    def __dealloc__(self):
        if self.pool is not None:
            self.pool.leave(self._state.share)
