"""Candidates for a draft: the latest places that share the longest contexts with the history, and how likely each is right.

Contexts of 16, 6, 3, 2 and 1 tokens are looked up, longest first, in the request's own text, in the
pool and in the static index. A candidate is compared with the history over 32 tokens, mismatches
included: a copy with a changed word differs from a chance match of two tokens. The place where the
followed text continues is a candidate even if the last token differs, so that drafts resume right
after an edit.

The confidence of a token comes from a small network over the candidates, corrected online.
It was trained offline on recorded outputs (tools/train_confidence.py); its inputs are how
long and how well the candidates agree with the history, how many propose the same token, how reliable
such candidates were, how often this token and what came after the newest one was right, and how the
request's recent drafts did. A last stage of a few weights and a table adapts to the running workload.
Published relatives: context mixing in compressors (lpaq), and SuffixDecoding (arXiv 2411.04975),
which scores drafts by follower counts alone.
"""

from libc.math cimport log
from libc.string cimport memset

from ngramspec._native.core.adapt cimport ADAPT_RATES, adapt_learn, adapt_probability
from ngramspec._native.core.types cimport hash_t, int32_t, ngs_load32, ngs_prefetch, ngs_prefetch_read
from ngramspec._native.suffix.index cimport (
    NUM_ORDERS, context_hashes, index_next, index_token, lines_find, lines_prefetch, order_size,
)
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
    LOGIT_SHIFT = 6       # from 65536 steps of a probability to the 1024 of the table
    SHIFT_WEIGHT = 20     # observations that the uncorrected value counts for
    FIRST_RELIABLE = 13107  # 0.2
    FIRST_SURE = 63569      # 0.97

# The network's inputs. Logarithms and counts are scaled to about 0..1.
cdef enum:
    POSITION              # in the draft
    RUN_OWN               # of the choice: its longest runs ...
    RUN_POOL
    SHARE                 # ... its part of all odds ...
    NUM_OWN               # ... and its candidates
    NUM_POOL
    NUM_CHOICES
    RIVAL                 # the longest run of another choice
    NUM_VOTES
    HITS                  # of the request's recent drafts
    RIGHT_RUN
    HISTORY
    HISTORY_END = HISTORY + 2
    RELIABILITY           # of the choice's best candidate
    ODDS
    OTHER_ODDS
    NUM_ALIKE             # of the best candidate: tokens before it that equal the history's
    THERE
    CLOSE
    OWN_OUTPUT
    POOL_PROMPT
    POOL_OUTPUT
    DISTANCE              # to it, in the request's own text
    SECOND                # it is not the likeliest choice
    LONGEST               # its longest run, in buckets
    SEEN                  # two for each of the token tables

cdef float LEARN = 0.002
cdef float LEAST = 0.0005   # probabilities stay in LEAST..1 - LEAST
cdef float LN2_QUARTER = 0.6931472 / 4
cdef float QUARTER = 0.25
cdef float THIRD = 1.0 / 3
cdef float FIFTH = 0.2
cdef float EIGHTH = 0.125
cdef float ELEVENTH = 1.0 / 11
cdef float SIXTEENTH = 0.0625
cdef float TINY = 1e-3


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


cdef bint _compare(MatchC* c, const HistoryC* h, const SuffixPoolC* pool, const WriterC* w,
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


cdef bint _has(const MatchC* c, int n, Py_ssize_t position) noexcept nogil:
    cdef int i
    for i in range(n):
        if c[i].position == position:
            return True
    return False


cdef int _seek(const LinesC* lines, const hash_t* hashes, int num, Place place, TextC* text, const HistoryC* h,
               const SuffixPoolC* pool, const WriterC* w, const SuffixIndexC* index, MatchC* out) noexcept nogil:
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
               MatchC* out) noexcept nogil:
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


cdef int match_static(TextC* text, const HistoryC* h, const SuffixIndexC* index, MatchC* out,
                      int others) noexcept nogil:
    """Write at most MOST candidates behind the `others` of own text and pool; return their number.

    Where there are others, only those that agree for longer than all of them, and for two tokens at least: texts that the request
    has nothing to do with hold short matches of anything, which made what it repeats less sure.
    """
    cdef hash_t[NUM_ORDERS] hashes
    cdef MatchC* candidates = out + others
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


cdef bint candidate_next(MatchC* c, const HistoryC* h, const SuffixPoolC* pool, const SuffixIndexC* index,
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


cdef extern from "ngs_suffix.h" nogil:
    float ngs_net_logit(const ngs_net* net, const float* x)
    float ngs_log2(float x)
    float ngs_logistic(float x)

cdef float[ADAPT_RATES + 1] KNOWN_OF  # n / (n + 2)
cdef float[257] LOG2_OF     # log2(1 + i)
cdef float[1024] LOGIT_OF   # of (i + 0.5) / 1024, kept in -6.2..6.2
cdef uint8_t[128] BUCKET_OF  # of a run of tokens


cdef void _fill_tables() noexcept:
    cdef int i, bucket
    cdef double p
    for i in range(257):
        LOG2_OF[i] = ngs_log2(1.0 + i)
    for i in range(ADAPT_RATES + 1):
        KNOWN_OF[i] = i / (i + 2.0)
    for i in range(1024):
        p = min(max((i + 0.5) / 1024, 0.002), 0.998)
        LOGIT_OF[i] = log(p / (1 - p))
    for i in range(128):
        bucket = i if i <= 4 else 5 if i <= 6 else 6 if i <= 8 else 7 if i <= 12 else 8 if i <= 16 else 9
        BUCKET_OF[i] = <uint8_t>(bucket if i <= 24 else 10 if i <= 32 else 11)


_fill_tables()


cdef inline float _log_of(Py_ssize_t i) noexcept nogil:
    return LOG2_OF[i] if i <= 256 else ngs_log2(1.0 + <float>i)


cdef inline float _logit(const AdaptC* a) noexcept nogil:
    return LOGIT_OF[a.p >> LOGIT_SHIFT]


cdef inline int _longest(const ChoiceC* c) noexcept nogil:
    return c.run_own if c.run_own > c.run_pool else c.run_pool


cdef inline int _bucket(Py_ssize_t run) noexcept nogil:
    return BUCKET_OF[run if run < 127 else 127]


cdef int place_in_draft(Py_ssize_t position) noexcept nogil:
    return <int>position if position < 2 else 2 if position < 4 else 3


cdef uint16_t reliable_key(const MatchC* c, Py_ssize_t position) noexcept nogil:
    return <uint16_t>((((_bucket(c.run + position) * 4 + c.alike) * KINDS + 2 * c.place + c.output) * 4 + c.near) * 4
                      + place_in_draft(position))


cdef int sure_key(const ChoiceC* choice, int num_choices, const LatelyC* lately, Py_ssize_t position) noexcept nogil:
    cdef int run = _longest(choice)
    cdef int votes = choice.num_own + choice.num_pool
    if num_choices != 1 or position < SURE_FROM or run < SURE_RUN:
        return -1
    return ((_bucket(run) * 4 + (votes if votes < 4 else 4) - 1) * 2 + (lately.hits > 0.5)) * 2 + choice.foreign


cdef float model_sure(const ModelC* m, int key) noexcept nogil:
    cdef float p = adapt_probability(&m.sure[key])
    return p if p < 1 - LEAST else 1 - LEAST


cdef inline float _correction(const ModelC* m, int shift) noexcept nogil:
    return _logit(&m.shifts[shift])


cdef void model_start(ModelC* m) noexcept nogil:
    """Set all but the network to its initial values."""
    cdef int i, bucket
    memset(m.tokens, 0, sizeof(m.tokens))
    for i in range(1024):
        m.odds[i] = (i + 0.5) / (1024.5 - i)
    for i in range(NUM_RELIABLE):
        m.reliable[i] = AdaptC(FIRST_RELIABLE, 0)
    for i in range(ORIGINS * PLACES_IN_DRAFT * SHIFTS):
        bucket = i % SHIFTS
        m.shifts[i] = AdaptC(<uint16_t>(65535 * ngs_logistic((bucket + 0.5) / 2 - 6)), SHIFT_WEIGHT)
    for i in range(NUM_SURE):
        m.sure[i] = AdaptC(FIRST_SURE, SHIFT_WEIGHT)
    memset(m.weights, 0, sizeof(m.weights))
    for i in range(ORIGINS * PLACES_IN_DRAFT):
        m.weights[i][0] = 1


cdef inline uint32_t _token_key(token_t a, token_t b, uint32_t how) noexcept nogil:
    cdef uint32_t h = (<uint32_t>a * 0x9E3779B1u ^ (<uint32_t>b + 1) * 0x85EBCA77u) + how * 0x27D4EB2Fu
    h ^= h >> 15
    h *= 0x2C1B3C6Du
    return h >> (32 - TOKEN_BITS)


cdef void _token_keys(ChoiceC* c, const token_t* before, Py_ssize_t length) noexcept nogil:
    """Set the cells that say how often such a choice was right, one in each table."""
    cdef token_t last = (before - 1)[0] if length >= 1 else 0
    cdef token_t second = (before - 2)[0] if length >= 2 else 0
    cdef uint32_t how = 2 * _bucket(_longest(c)) + (c.rank > 0) + 32 * c.foreign
    c.keys[0] = _token_key(c.token, 0, how)
    c.keys[1] = _token_key(c.token, last, 0)
    c.keys[2] = _token_key(c.token, second, 0)
    c.keys[3] = _token_key(last, 0, how)


cdef void _describe(const ModelC* m, const ChoiceC* c, int num_choices, int num_votes, float all_odds, int rival,
                    const MatchC* best, const LatelyC* lately, Py_ssize_t length, Py_ssize_t position,
                    float* x) noexcept nogil:
    """Write the network's inputs."""
    # The static index counts as a pool: the network has inputs for two places only.
    cdef bint own = best.place == PLACE_OWN
    cdef const AdaptC* seen
    cdef float weight
    cdef int i
    x[POSITION] = _log_of(position) * THIRD
    x[RUN_OWN] = _log_of(c.run_own) * FIFTH
    x[RUN_POOL] = _log_of(c.run_pool) * FIFTH
    x[SHARE] = c.odds / all_odds
    x[NUM_OWN] = _log_of(c.num_own) * THIRD
    x[NUM_POOL] = _log_of(c.num_pool) * THIRD
    x[NUM_CHOICES] = <float>(num_choices if num_choices < 8 else 8) * EIGHTH
    x[RIVAL] = _log_of(rival) * FIFTH
    x[NUM_VOTES] = _log_of(num_votes) * QUARTER
    x[HITS] = lately.hits
    x[RIGHT_RUN] = _log_of(lately.run) * FIFTH
    for i in range(3):
        x[HISTORY + i] = (lately.history >> i) & 1
    x[RELIABILITY] = LOGIT_OF[c.best >> LOGIT_SHIFT] * QUARTER
    x[ODDS] = LN2_QUARTER * ngs_log2(c.odds + TINY)
    x[OTHER_ODDS] = LN2_QUARTER * ngs_log2(all_odds - c.odds + TINY)
    x[NUM_ALIKE] = <float>ngs_ones(best.mask) * (SIXTEENTH / 2)
    x[THERE] = best.near == 3
    x[CLOSE] = best.near == 2
    x[OWN_OUTPUT] = own and best.output
    x[POOL_PROMPT] = not own and not best.output
    x[POOL_OUTPUT] = not own and best.output
    x[DISTANCE] = _log_of(length - best.position + position) * SIXTEENTH if own else 0
    x[SECOND] = c.rank > 0
    x[LONGEST] = <float>_bucket(_longest(c)) * ELEVENTH
    for i in range(TOKEN_TABLES):
        seen = &m.tokens[i][c.keys[i]]
        weight = KNOWN_OF[seen.n]
        x[SEEN + 2 * i] = _logit(seen) * QUARTER * weight
        x[SEEN + 2 * i + 1] = weight


cdef void _correct(const ModelC* m, ChoiceC* c, float logit, const float* x, int place) noexcept nogil:
    """Set the choice's probability: the network's logit through the online stage."""
    cdef int bucket = <int>((logit + 6) * 2)
    cdef float total = 0
    cdef int i
    bucket = 0 if bucket < 0 else SHIFTS - 1 if bucket >= SHIFTS else bucket
    c.shift = <uint16_t>(place * SHIFTS + bucket)
    c.inputs[0] = logit
    c.inputs[1] = 0.5
    c.inputs[2] = _correction(m, c.shift) - logit
    for i in range(TOKEN_TABLES):
        c.inputs[3 + i] = x[SEEN + 2 * i]
    for i in range(CORRECTIONS):
        total += c.inputs[i] * m.weights[place][i]
    c.p = ngs_logistic(total)
    c.p = LEAST if c.p < LEAST else 1 - LEAST if c.p > 1 - LEAST else c.p


cdef void model_judge(const ModelC* m, ChoiceC* choices, int num, int num_choices, const MatchC* candidates,
                      const LatelyC* lately, const token_t* before, Py_ssize_t length, Py_ssize_t position,
                      float* features) noexcept nogil:
    """Judge the first `num` of num_choices choices, which are sorted by odds."""
    cdef int place = place_in_draft(position)
    cdef float all_odds = 0
    cdef int votes = 0
    cdef int rival, longest, i, k
    for i in range(num):
        choices[i].rank = <uint8_t>i
        _token_keys(&choices[i], before, length + position)
        for k in range(TOKEN_TABLES):
            ngs_prefetch(&m.tokens[k][choices[i].keys[k]])
    for i in range(num_choices):
        all_odds += choices[i].odds
        votes += choices[i].num_own + choices[i].num_pool
    for i in range(num):
        rival = 0
        for k in range(num_choices):
            longest = _longest(&choices[k])
            if k != i and longest > rival:
                rival = longest
        _describe(m, &choices[i], num_choices, votes, all_odds, rival, &candidates[choices[i].best_candidate], lately,
                  length, position, features)
        _correct(m, &choices[i], ngs_net_logit(&m.net, features), features,
                 place + PLACES_IN_DRAFT * choices[i].foreign)
        features += NGS_FEATURES


cdef void model_learn(ModelC* m, const ChoiceC* choice, Py_ssize_t position, bint right) noexcept nogil:
    cdef int place = place_in_draft(position) + PLACES_IN_DRAFT * choice.foreign
    cdef float step = LEARN * ((1 if right else 0) - choice.p)
    cdef int i
    for i in range(CORRECTIONS):
        m.weights[place][i] += step * choice.inputs[i]
    adapt_learn(&m.shifts[choice.shift], right)
    for i in range(TOKEN_TABLES):
        adapt_learn(&m.tokens[i][choice.keys[i]], right)
