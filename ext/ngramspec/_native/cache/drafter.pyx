"""ngram-cache: draft token by token from counts of the slot, of past generations and of a corpus.

Each token is looked up in the slot's own counts (context, lax thresholds), in what was generated
before (dynamic, strict thresholds), then in the corpus (static); longer n-grams first. Static
counts re-weight the followers of the other two. Per call O(new tokens + draft); re-weighting adds
a walk of the shorter of two follower lists.
Source: llama.cpp common/ngram-cache.cpp; differences are listed in docs/reference/differences.md (C1-C7).
"""

cimport cython
from libc.string cimport memset

from ngramspec._native.cache.counts cimport (
    ContextC, CountsC, NgramC, ShardC, SharedC, context_check, context_free, context_init, context_learn,
    context_nbytes, context_rewind, counts_find, counts_find_next, counts_of, counts_prefetch,
    ngram_hash_step, shared_learn, shared_shard,
)
from ngramspec._native.cache.ngram_cache cimport NgramCache
from ngramspec._native.cache.static cimport (
    FollowersC, StaticC, StaticCache, followers_count, static_find, static_prefetch,
)
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.types cimport (
    NGRAM_MAX, STATUS_OK, Status, int32_t, int64_t, ngs_load32, ngs_lock_shared, ngs_unlock_shared, token_t,
    uint32_t, uint64_t,
)
from ngramspec._native.drafter.source cimport JOINED_OUTPUT, Joined, Source

cdef enum:
    MIN_HISTORY = 2       # tokens before anything is drafted, as in llama.cpp
    MIN_WEIGHTS = 2       # shortest static n-gram that re-weights the followers of others
    PAGE_WORDS = 1024     # words per page of a mapped file

cdef struct ThresholdC:
    int64_t min_sample    # fewest occurrences of the n-gram
    int64_t min_percent   # smallest share of the follower, 0..100

cdef struct LookupC:
    Py_ssize_t ngram_min
    Py_ssize_t ngram_max
    ThresholdC[NGRAM_MAX] lax
    ThresholdC[NGRAM_MAX] strict
    ThresholdC static_only
    bint static_veto      # static can prefer a follower that then fails the threshold
    bint dynamic_update
    SharedC* dynamic      # NULL = none
    const StaticC* static_counts  # NULL = none
    Py_ssize_t num_slots
    ContextC* contexts    # one per slot

# The newest tokens, drafted ones included, and the hashes of the n-grams that end with them.
cdef struct TailC:
    token_t[NGRAM_MAX] tokens
    uint32_t[NGRAM_MAX + 1] hashes
    Py_ssize_t len
    float claim           # how likely the last token found is right
    const NgramC* walked  # entry of the longest size that gave the last token from the context, or NULL


# The result of looking up the next token in static, if that was done.
cdef struct StaticAnswerC:
    bint asked
    bint locked           # the lock of dynamic counts is held, so no page of a file may be waited for
    bint missing          # static was needed while `locked`
    FollowersC weights    # num = 0: no n-gram of MIN_WEIGHTS tokens or more is known
    token_t fallback      # -1 = none


cdef Status _reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    return STATUS_OK      # a context makes its own room, a block at a time


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    context_rewind(&(<LookupC*>state).contexts[slot], h.tokens, length)


cdef void _index(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    context_learn(&(<LookupC*>state).contexts[slot], h.tokens, h.len)


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
    cdef LookupC* k = <LookupC*>state
    if how == JOINED_OUTPUT and k.dynamic != NULL and k.dynamic_update:
        shared_learn(k.dynamic, h.tokens, start, h.len)  # without room it is not learned; drafting goes on


cdef inline double _score(const FollowersC* weights, token_t token, int64_t count) noexcept nogil:
    cdef int64_t weight = followers_count(weights, token)
    return <double>count * 100 * weight if weight > 0 else <double>count


cdef Py_ssize_t _list_len(const CountsC* c, const NgramC* g, Py_ssize_t limit) noexcept nogil:
    cdef Py_ssize_t num = 1 if g.followers < 0 else 0
    cdef int32_t item = g.followers
    while item >= 0 and num < limit:
        num += 1
        item = c.followers[item].next
    return num


cdef inline void _consider(const LookupC* k, const CountsC* c, const NgramC* g, const FollowersC* weights, ThresholdC t,
                           token_t token, token_t* best, double* best_score) noexcept nogil:
    cdef int64_t count = counts_of(c, g, token)
    cdef double score = _score(weights, token, count)
    if score > best_score[0] and (k.static_veto or 100 * count >= t.min_percent * g.total):
        best[0] = token
        best_score[0] = score


cdef token_t _reweighted(const LookupC* k, const CountsC* c, const NgramC* g, const FollowersC* weights,
                         ThresholdC t) noexcept nogil:
    """The follower with the highest count x static weight.

    Only the most frequent follower and those that static knows too can have it, so the shorter of the
    two lists is walked.
    """
    cdef token_t best = g.best
    cdef double best_score = _score(weights, best, g.best_count)
    cdef int32_t item = g.followers
    cdef Py_ssize_t i
    if item < 0:
        return best
    if weights.num < _list_len(c, g, weights.num + 1):
        if weights.pairs == NULL:
            _consider(k, c, g, weights, t, weights.best, &best, &best_score)
        else:
            for i in range(weights.num):
                _consider(k, c, g, weights, t, <token_t>weights.pairs[2 * i], &best, &best_score)
        return best
    while item >= 0:
        _consider(k, c, g, weights, t, c.followers[item].token, &best, &best_score)
        item = c.followers[item].next
    return best


cdef inline float _claim(int64_t count, int64_t total) noexcept nogil:
    return <float>count / <float>(total + 1)


cdef void _ask_static(const LookupC* k, TailC* x, StaticAnswerC* answer) noexcept nogil:
    """Look up static: the longest n-gram found gives the weights, the longest one that passes the
    threshold gives the fallback."""
    cdef const token_t* newest = &x.tokens[NGRAM_MAX - 1]
    cdef Py_ssize_t longest = k.static_counts.ngram_max if k.static_counts.ngram_max < x.len else x.len
    cdef Py_ssize_t size = longest
    cdef FollowersC followers
    answer.asked = True
    while size >= k.static_counts.ngram_min and size > 0:
        static_prefetch(k.static_counts, newest, size)
        size -= 1
    size = longest
    while size >= k.static_counts.ngram_min and size > 0:
        if static_find(k.static_counts, newest, size, &followers):
            if answer.weights.num == 0 and size >= MIN_WEIGHTS:
                answer.weights = followers
            if (followers.total >= k.static_only.min_sample
                    and 100 * <int64_t>followers.best_count >= k.static_only.min_percent * followers.total):
                answer.fallback = followers.best
                x.claim = _claim(followers.best_count, followers.total)
                return
        size -= 1


cdef token_t _weighed(const LookupC* k, const CountsC* c, const NgramC* g, TailC* x, StaticAnswerC* answer,
                      ThresholdC t) noexcept nogil:
    """The follower with the best count x static weight; static is looked up only if there is a choice."""
    if k.static_counts == NULL or g.followers < 0:
        return g.best
    if not answer.asked:
        if answer.locked:
            answer.missing = True
            return g.best
        _ask_static(k, x, answer)
    return g.best if answer.weights.num == 0 else _reweighted(k, c, g, &answer.weights, t)


cdef token_t _next_of(const LookupC* k, const CountsC* c, const ThresholdC* thresholds, TailC* x,
                      StaticAnswerC* answer) noexcept nogil:
    """The follower that passes its threshold for the longest n-gram, -1 when none does."""
    cdef const token_t* newest = &x.tokens[NGRAM_MAX - 1]
    cdef Py_ssize_t longest = k.ngram_max if k.ngram_max < x.len else x.len
    cdef Py_ssize_t size = longest
    cdef const NgramC* walked = counts_find_next(c, x.walked, newest, size) if x.walked != NULL else NULL
    cdef const NgramC* g
    cdef ThresholdC t
    cdef token_t best
    x.walked = NULL
    if walked == NULL and c.ngram_table.now.capacity > 0:
        for size in range(1, longest + 1):
            counts_prefetch(c, x.hashes[size])
    size = longest
    while size >= k.ngram_min:
        g = walked if size == longest and walked != NULL else counts_find(c, x.hashes[size], newest, size)
        if g != NULL:
            x.walked = g if size == longest else NULL
            t = thresholds[size - 1]
            # No follower is more frequent than the best one, so none passes when it fails.
            if g.total >= t.min_sample and 100 * <int64_t>g.best_count >= t.min_percent * g.total:
                best = _weighed(k, c, g, x, answer, t)
                if best == g.best or 100 * <int64_t>counts_of(c, g, best) >= t.min_percent * g.total:
                    x.claim = _claim(counts_of(c, g, best), g.total)
                    return best
        size -= 1
    return -1


cdef void _push(TailC* x, token_t token) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint64_t h = 0
    for i in range(NGRAM_MAX - 1):
        x.tokens[i] = x.tokens[i + 1]
    x.tokens[NGRAM_MAX - 1] = token
    x.len = x.len + 1 if x.len < NGRAM_MAX else NGRAM_MAX
    for i in range(1, x.len + 1):
        h = ngram_hash_step(h, x.tokens[NGRAM_MAX - i])
        x.hashes[i] = <uint32_t>h


cdef void _read_pages(const FollowersC* f) noexcept nogil:
    """Fault in the pages of a list before a lock is taken."""
    cdef Py_ssize_t at = 0
    while at < 2 * f.num and f.pairs != NULL:
        ngs_load32(f.pairs + at)
        at += PAGE_WORDS


cdef token_t _next_of_dynamic(const LookupC* k, TailC* x, StaticAnswerC* answer) noexcept nogil:
    """The same from the dynamic counts; static is looked up outside their lock."""
    cdef ShardC* shard = shared_shard(k.dynamic, x.tokens[NGRAM_MAX - 1])
    cdef token_t token
    cdef void* left
    while True:
        if answer.asked:
            _read_pages(&answer.weights)
        x.walked = NULL
        answer.locked, answer.missing = True, False
        left = ngs_lock_shared(&shard.lock)
        token = _next_of(k, &shard.counts, k.strict, x, answer)
        ngs_unlock_shared(&shard.lock, left)
        answer.locked = False
        x.walked = NULL
        if not answer.missing:
            return token
        _ask_static(k, x, answer)


cdef token_t _next(const LookupC* k, const CountsC* context, TailC* x) noexcept nogil:
    cdef StaticAnswerC answer
    cdef token_t token
    answer.asked = answer.locked = answer.missing = False
    answer.weights.num = 0
    answer.fallback = -1
    token = _next_of(k, context, k.lax, x, &answer)
    if token < 0 and k.dynamic != NULL:
        token = _next_of_dynamic(k, x, &answer)
    if token < 0 and k.static_counts != NULL:
        if not answer.asked:
            _ask_static(k, x, &answer)
        return answer.fallback
    return token


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit, int lane) noexcept nogil:
    cdef LookupC* k = <LookupC*>state
    cdef TailC x
    cdef Py_ssize_t i = h.len - NGRAM_MAX if h.len > NGRAM_MAX else 0
    cdef Py_ssize_t num = 0
    cdef token_t token
    if h.len < MIN_HISTORY:
        return 0
    memset(&x, 0, sizeof(TailC))
    for i in range(i, h.len):
        _push(&x, h.tokens[i])
    while num < limit:
        token = _next(k, &k.contexts[slot].counts, &x)
        if token < 0:
            break
        out[num] = token
        confidence[num] = x.claim
        num += 1
        _push(&x, token)
    return num


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    return context_check(&(<LookupC*>state).contexts[slot], h.len)


cdef size_t _nbytes(void* state) noexcept nogil:
    cdef LookupC* k = <LookupC*>state
    cdef size_t total = 0
    cdef Py_ssize_t i
    for i in range(k.num_slots):
        total += context_nbytes(&k.contexts[i])
    return total


cdef void _release(void* state, Py_ssize_t slot) noexcept nogil:
    cdef LookupC* k = <LookupC*>state
    context_free(&k.contexts[slot])
    context_init(&k.contexts[slot], k.ngram_min, k.ngram_max)


@cython.final
cdef class CacheSource(Source):
    """CacheSource(slots, config, dynamic, static): the source behind "ngram-cache".

    Args:
        slots: Number of slots, >= 1.
        config: Checked parameters: n_draft, ngram_min, ngram_max, lax, strict (one pair of minimum
            sample and minimum percent per size 1..4), static_only (one pair), static_veto,
            dynamic_update.
        dynamic: NgramCache of what was generated, or None. With dynamic_update it learns what is emitted.
        static: StaticCache of a corpus, or None.

    Raises:
        MemoryError: The state cannot be allocated.
    """

    cdef LookupC _state
    cdef readonly NgramCache dynamic
    cdef readonly StaticCache static

    def __cinit__(self, Py_ssize_t slots, config not None, NgramCache dynamic, StaticCache static):
        cdef LookupC* k = &self._state
        cdef Py_ssize_t i
        self.name = "ngram-cache"
        self.slots = slots
        self.dynamic = dynamic
        self.static = static
        memset(k, 0, sizeof(LookupC))
        k.ngram_min = config.ngram_min
        k.ngram_max = config.ngram_max
        k.static_veto = config.static_veto
        k.dynamic_update = config.dynamic_update
        for i in range(NGRAM_MAX):
            k.lax[i] = ThresholdC(config.lax[i][0], config.lax[i][1])
            k.strict[i] = ThresholdC(config.strict[i][0], config.strict[i][1])
        k.static_only = ThresholdC(config.static_only[0], config.static_only[1])
        if dynamic is not None:
            k.dynamic = &dynamic.c
        if static is not None:
            k.static_counts = &static.c
        k.contexts = <ContextC*>self.take(slots, sizeof(ContextC))
        k.num_slots = slots
        for i in range(slots):
            context_init(&k.contexts[i], config.ngram_min, config.ngram_max)
        self.c.state, self.c.max_draft = k, config.n_draft
        self.c.reserve, self.c.rewind = _reserve, _rewind
        self.c.index, self.c.extend = _index, _extend
        self.c.propose = _propose
        self.c.check, self.c.nbytes = _check, _nbytes
        self.c.release = _release

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._state.num_slots):
            context_free(&self._state.contexts[i])
