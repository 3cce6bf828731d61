"""What a request teaches the suffix source: its index, the pool, and how right the last proposal was."""

from ngramspec._adapt cimport adapt_learn
from ngramspec._confidence cimport model_learn
from ngramspec._lines cimport lines_extend
from ngramspec._match cimport PLACE_OWN, PLACE_POOL, PLACE_STATIC, CandidateC
from ngramspec._suffix_index cimport index_next
from ngramspec._suffix_pool cimport KIND_OUTPUT, KIND_PROMPT, pool_next, pool_praise, pool_token, pool_write
from ngramspec._suffix_state cimport RecordC
from ngramspec._types cimport token_t

cdef enum:
    LOST = 16             # tokens without agreement after which nothing is expected any more

cdef float STEP = 0.1     # weight of the newest first token in the running share of right ones


cdef void suffix_index(SuffixSlotC* s, const HistoryC* h) noexcept nogil:
    """Enter the contexts of new tokens."""
    lines_extend(&s.text.own, &s.next_own, h.tokens, s.num_indexed, h.len)
    s.num_indexed = h.len


cdef void suffix_give(SuffixC* c, SuffixSlotC* s, const HistoryC* h, bint over) noexcept nogil:
    """Write to the pool what was generated since the last time; when the request is over, its prompt."""
    if c.pool == NULL:
        return
    s.output_from = pool_write(c.pool, &s.writer, h.tokens, s.output_from, h.len, KIND_OUTPUT, over)
    if over and c.prompts:
        s.prompt_from = pool_write(c.pool, &s.writer, h.tokens, s.prompt_from, s.text.prompt_len, KIND_PROMPT, True)


cdef inline token_t _token_at(const SuffixC* c, const HistoryC* h, int place, Py_ssize_t at) noexcept nogil:
    if place == PLACE_OWN:
        return h.tokens[at]
    return pool_token(c.pool, at) if place == PLACE_POOL else c.index.tokens[at]


cdef inline Py_ssize_t _next_of(const SuffixC* c, int place, Py_ssize_t at) noexcept nogil:
    if place == PLACE_OWN:
        return at + 1
    return pool_next(c.pool, at) if place == PLACE_POOL else index_next(c.index, at)


cdef int _agreed(const SuffixC* c, const CandidateC* candidate, const HistoryC* h, Py_ssize_t start,
                 Py_ssize_t* after) noexcept nogil:
    """How many of the new tokens a candidate had right; `after`: its place behind all of them, or -1."""
    cdef Py_ssize_t at = candidate.position
    cdef int right = 0
    cdef bint agrees = True
    cdef Py_ssize_t i
    for i in range(start, h.len):
        if at < 0 or (candidate.place == PLACE_OWN and at >= h.len):
            at = -1
            break
        agrees = agrees and _token_at(c, h, candidate.place, at) == h.tokens[i]
        right += agrees
        at = _next_of(c, candidate.place, at)
    after[0] = at if candidate.place != PLACE_OWN or at < h.len else -1
    return right


cdef void _follow(SuffixC* c, SuffixSlotC* s, const HistoryC* h, Py_ssize_t start, int place) noexcept nogil:
    """Expect the text to go on where the best candidate's does."""
    cdef int best = 0
    cdef int longest = -1
    cdef Py_ssize_t expected = -1
    cdef Py_ssize_t after
    cdef int _i, i, right
    for i in range(s.num_candidates):
        if s.candidates[i].place != place:
            continue
        right = _agreed(c, &s.candidates[i], h, start, &after)
        if right > best or (right == best and right > 0 and s.candidates[i].run > longest):
            best, longest, expected = right, s.candidates[i].run, after
            if place == PLACE_POOL:
                pool_praise(c.pool, s.candidates[i].position)
    if best > 0:
        s.text.expected[place] = expected
        s.lost[place] = 0 if best == h.len - start else 1
        return
    s.lost[place] += h.len - start
    if s.text.expected[place] < 0 or s.lost[place] > LOST:
        s.text.expected[place] = -1
        return
    for _i in range(<int>(h.len - start)):
        expected = s.text.expected[place]
        if expected >= 0:
            s.text.expected[place] = _next_of(c, place, expected)


cdef void suffix_learn(SuffixC* c, SuffixSlotC* s, const HistoryC* h, Py_ssize_t start) noexcept nogil:
    """Compare what was considered with what the target said."""
    cdef RecordC* r
    cdef token_t token
    cdef bint right
    cdef Py_ssize_t i
    cdef int at = 0 if s.num_records > 0 else -1
    cdef int k
    for i in range(h.len - start):
        if at < 0:
            break
        r = &s.records[at]
        at = -1
        token = h.tokens[start + i]
        right = r.choices[r.chosen].token == token
        if r.sure >= 0:
            adapt_learn(&c.model.sure[r.sure], right)
        for k in range(r.num):
            if r.choices[k].token == token:
                at = r.next[k]
            if r.sure < 0:
                model_learn(c.model, &r.choices[k], i, r.choices[k].token == token)
        for k in range(r.num_votes):
            adapt_learn(&c.model.reliable[r.votes[k].key], r.votes[k].token == token)
        if i == 0:
            s.lately.hits += STEP * ((1 if right else 0) - s.lately.hits)
            s.lately.history = s.lately.history << 1 | <unsigned int>right
        s.lately.run = s.lately.run + 1 if right else 0
    _follow(c, s, h, start, PLACE_OWN)
    if c.pool != NULL:
        _follow(c, s, h, start, PLACE_POOL)
    if c.index != NULL:
        _follow(c, s, h, start, PLACE_STATIC)
