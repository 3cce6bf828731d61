"""Candidates for a draft: the latest places that share the longest contexts with the history.

Contexts of 16, 6, 3, 2 and 1 tokens are looked up, longest first, in the request's own text, in the
pool and in the static index. A candidate is compared with the history over 32 tokens, mismatches
included: a copy with a changed word differs from a chance match of two tokens. The place where the
followed text continues is a candidate even if the last token differs, so that drafts resume right
after an edit.
"""

from ngramspec._native.core.types cimport hash_t, int32_t, ngs_load32, ngs_prefetch_read
from ngramspec._native.suffix.index cimport index_next, index_token
from ngramspec._native.suffix.lines cimport NUM_ORDERS, context_hashes, lines_find, lines_prefetch, order_size
from ngramspec._native.suffix.pool cimport (
    BLOCK, KIND_OUTPUT, pool_before, pool_generation, pool_go_on, pool_stands, pool_token,
)

cdef extern from "ngs_suffix.h" nogil:
    uint32_t ngs_alike(const token_t* a, const token_t* b, int n)
    int ngs_run(uint32_t mask)
    int ngs_ones(uint32_t mask)

cdef enum:
    NEAR = 24             # largest distance in tokens that counts as near
    OF_ONE_ORDER = MOST - 1


cdef inline uint8_t _alike(uint32_t mask, int run) noexcept nogil:
    cdef int more
    if run >= 32:
        return 3
    more = ngs_ones(mask >> run)
    return 3 if more >= 8 else 2 if more >= 4 else 1 if more >= 2 else 0


cdef inline uint8_t _near(Py_ssize_t position, Py_ssize_t expected) noexcept nogil:
    if expected < 0:
        return 0
    if position == expected:
        return 3
    return 2 if -NEAR <= position - expected <= NEAR else 1


cdef bint _compare(CandidateC* c, const HistoryC* h, const SuffixPoolC* pool, const WriterC* w,
                   const SuffixIndexC* index, Py_ssize_t expected) noexcept nogil:
    """Fill in a candidate whose position and place are known; False when nothing is there."""
    cdef Py_ssize_t before
    cdef const token_t* at
    if c.place == PLACE_OWN:
        if c.position >= h.len:
            return False
        at = h.tokens + c.position
        before = c.position
    elif c.place == PLACE_STATIC:
        if index_token(index, c.position) < 0:
            return False
        at = index.tokens + c.position
        before = c.position
    else:
        c.generation = pool_generation(pool, c.position)
        before = pool_before(pool, c.position)
        if before < 0 or <int32_t>ngs_load32(<uint32_t*>&pool.blocks[c.position // BLOCK].stream) == w.stream:
            return False
        at = pool.tokens + c.position
        c.output = ngs_load32(&pool.blocks[c.position // BLOCK].kind) == <uint32_t>KIND_OUTPUT
    if before > h.len:
        before = h.len
    c.mask = ngs_alike(at, h.tokens + h.len, <int>before if before < 32 else 32)
    c.run = <uint8_t>ngs_run(c.mask)
    c.alike = _alike(c.mask, c.run)
    c.near = _near(c.position, expected)
    c.live = True
    if c.place != PLACE_POOL:
        c.token = at[0]
        return True
    c.token = pool_token(pool, c.position)
    return pool_stands(pool, c.position, c.generation)


cdef bint _has(const CandidateC* c, int n, Py_ssize_t position) noexcept nogil:
    cdef int i
    for i in range(n):
        if c[i].position == position:
            return True
    return False


cdef int _seek(const LinesC* lines, const hash_t* hashes, int num, Place place, TextC* text, const HistoryC* h,
               const SuffixPoolC* pool, const WriterC* w, const SuffixIndexC* index, CandidateC* out) noexcept nogil:
    """Write up to MOST candidates of one place; return their number."""
    cdef uint32_t[4] positions
    cdef Py_ssize_t expected = text.expected[<int>place]
    cdef int n = 0
    cdef int order, count, k
    for order in range(num - 1, -1, -1):
        count = lines_find(lines, hashes[order], positions)
        for k in range(count):
            if n == OF_ONE_ORDER:
                break
            out[n].position = positions[k]
            out[n].place = place
            out[n].output = place == PLACE_OWN and <Py_ssize_t>positions[k] >= text.prompt_len
            if not _has(out, n, positions[k]) and _compare(&out[n], h, pool, w, index, expected) and (
                    out[n].run >= order_size(order)):
                n += 1
    if expected >= 0 and not _has(out, n, expected):
        out[n].position = expected
        out[n].place = place
        out[n].output = place == PLACE_OWN and expected >= text.prompt_len
        if _compare(&out[n], h, pool, w, index, expected):
            n += 1
    return n


cdef int match(TextC* text, const HistoryC* h, const SuffixPoolC* pool, const WriterC* w,
               CandidateC* out) noexcept nogil:
    """Write at most 2 * MOST candidates; return their number. The pool may be NULL."""
    cdef hash_t[NUM_ORDERS] hashes
    cdef int num = context_hashes(h.tokens + h.len, h.len, hashes)
    cdef int n
    if pool != NULL:
        lines_prefetch(&pool.lines, hashes, num)
    n = _seek(&text.own, hashes, num, PLACE_OWN, text, h, pool, w, NULL, out)
    if pool != NULL:
        _prefetch_tokens(pool, hashes, num)
        n += _seek(&pool.lines, hashes, num, PLACE_POOL, text, h, pool, w, NULL, out + n)
    return n


cdef void match_fetch(const TextC* text, const HistoryC* h, const SuffixPoolC* pool, bint places) noexcept nogil:
    cdef hash_t[NUM_ORDERS] hashes
    cdef uint32_t[4] positions
    cdef int num = context_hashes(h.tokens + h.len, h.len, hashes)
    cdef int order, count, k
    cdef int n = 0
    if text.own.capacity == 0:
        return
    if places:
        lines_prefetch(&text.own, hashes, num)
        if pool != NULL:
            lines_prefetch(&pool.lines, hashes, num)
        return
    if pool != NULL:
        _prefetch_tokens(pool, hashes, num)
    for order in range(num - 1, -1, -1):
        count = lines_find(&text.own, hashes[order], positions)
        for k in range(count):
            ngs_prefetch_read(h.tokens + positions[k] - 1)
            n += 1
            if n == OF_ONE_ORDER:
                return


cdef int match_static(TextC* text, const HistoryC* h, const SuffixIndexC* index, CandidateC* out,
                      int others) noexcept nogil:
    """Write at most MOST candidates behind the `others` of own text and pool; return their number.

    Where there are others, only those that agree for longer than all of them, and for two tokens at least: texts that the request
    has nothing to do with hold short matches of anything, which made what it repeats less sure.
    """
    cdef hash_t[NUM_ORDERS] hashes
    cdef CandidateC* candidates = out + others
    cdef int longest = 1 if others > 0 else -1
    cdef int num_longer = 0
    cdef int i, n
    cdef int num = context_hashes(h.tokens + h.len, h.len, hashes)
    lines_prefetch(&index.lines, hashes, num)
    for i in range(others):
        longest = max(longest, <int>out[i].run)
    n = _seek(&index.lines, hashes, num, PLACE_STATIC, text, h, NULL, NULL, index, candidates)
    for i in range(n):
        if candidates[i].run > longest:
            candidates[num_longer] = candidates[i]
            num_longer += 1
    return num_longer


cdef void _prefetch_tokens(const SuffixPoolC* pool, const hash_t* hashes, int num) noexcept nogil:
    """Fetch what the candidates will be compared with, all at once."""
    cdef uint32_t[4] positions
    cdef int order, count, k
    cdef int n = 0
    for order in range(num - 1, -1, -1):
        count = lines_find(&pool.lines, hashes[order], positions)
        for k in range(count):
            ngs_prefetch_read(pool.tokens + positions[k])
            ngs_prefetch_read(pool.tokens + positions[k] - 16)
            ngs_prefetch_read(&pool.blocks[positions[k] // BLOCK])
            n += 1
            if n > OF_ONE_ORDER:
                return


cdef bint candidate_next(CandidateC* c, const HistoryC* h, const SuffixPoolC* pool, const SuffixIndexC* index,
                         const token_t* draft, Py_ssize_t drafted) noexcept nogil:
    if c.place == PLACE_OWN:
        c.position += 1
        # Past the end of the history read the draft itself: this drafts loops.
        if c.position >= h.len + drafted:
            return False
        c.token = h.tokens[c.position] if c.position < h.len else draft[c.position - h.len]
        return True
    if c.place == PLACE_STATIC:
        c.position = index_next(index, c.position)
        c.token = index_token(index, c.position)
        return c.position >= 0
    return pool_go_on(pool, &c.position, &c.generation, &c.token)
