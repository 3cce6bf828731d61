"""suffix: follow the longest matches in the request's own text, in other requests' and in a static index.

Candidates vote for the next token, weighted by how reliable similar ones have been; the network and its
online correction estimate how likely the best few choices are (suffix.match). The likeliest is
drafted and the candidates that agree continue. Every choice that was considered, sent or not, is then
compared with what the target emitted, so the probabilities follow the text at hand without exploring.
Each call is O(new tokens + draft), independent of the size of context and pool.

A tree grows by the token that is likeliest to be emitted (drafter.growth), among the choices that were judged.
Each token, likeliest or not, keeps the candidates that agree with its path.

Related: SuffixDecoding (arXiv 2411.04975), which grows a tree of counts in the same order,
SAM-Decoding (arXiv 2411.10666), Sequoia (arXiv 2402.12374) for trees of the largest expected length.
"""

cimport cython
from libc.string cimport memcpy

from ngramspec._native.core.adapt cimport adapt_learn
from ngramspec._native.core.history cimport HistoryC
from ngramspec._native.core.types cimport (
    Status, int32_t, ngs_prefetch, ngs_release_rest, token_t, uint16_t, uint32_t, uint8_t,
)
from ngramspec._native.drafter.growth cimport (
    MAX_DRAFT, GrowthC, LeafC, growth_begin, growth_has_room, growth_join, growth_offer,
)
from ngramspec._native.drafter.source cimport (
    FETCH_ENTRIES, FETCH_PLACES, FETCH_STATE, JOINED_AGAIN, JOINED_OUTPUT, Fetch, Joined, Source,
)
from ngramspec._native.suffix.index cimport (
    NextLinesC, SuffixIndex, SuffixIndexC, index_next, lines_extend, lines_fetch, lines_free, lines_nbytes,
    lines_reserve, lines_rewind,
)
from ngramspec._native.suffix.match cimport (
    NGS_FEATURES, NUM_PLACES, PLACE_OWN, PLACE_POOL, PLACE_STATIC, ChoiceC, LatelyC, MatchC, ModelC, TextC,
    candidate_next, match, match_fetch, match_static, model_judge, model_learn, model_start, model_sure, reliable_key,
    sure_key,
)
from ngramspec._native.suffix.pool cimport (
    KIND_OUTPUT, KIND_PROMPT, SuffixPool, SuffixPoolC, WriterC, pool_close, pool_next, pool_praise, pool_token,
    pool_write,
)

import numpy as np

from ngramspec.errors import InputError

cdef enum:
    ALL = 21              # candidates at most, MOST of each place
    JUDGED = 3            # choices per position that get a probability
    VOTED = 16            # positions whose votes are remembered
    KEPT = 3              # candidates that are kept where all agree
    LOST = 16             # tokens without agreement after which nothing is expected any more
    LINE = 64             # bytes that are fetched together
    PENDING = 64          # generated tokens that go to the pool together
    LONGEST_HISTORY = (1 << 25) - 2  # so that positions, and those after the last token, fit a word of a line

cdef float LEAST_ODDS = 0.1  # choices with less than this share of the first one's odds are not judged
cdef float STEP = 0.1     # weight of the newest first token in the running share of right ones

cdef struct VoteC:
    token_t token
    uint16_t key

# What was considered for one position of a draft.
cdef struct JudgedC:
    ChoiceC[JUDGED] choices
    int num
    int chosen
    VoteC[ALL] votes
    int num_votes
    int sure              # key of a unanimous vote that was not judged, -1 = none
    int position          # drafted tokens before it
    int after             # index in the draft of the last of these, -1 = none
    int[JUDGED] next      # record of what comes after each choice, -1 = nothing was considered

cdef struct SuffixSlotC:
    TextC text
    LatelyC lately
    WriterC writer
    NextLinesC next_own      # to replace text.own
    Py_ssize_t num_indexed   # tokens of the history whose contexts are in text.own
    Py_ssize_t prompt_from   # tokens from here to text.prompt_len are still to be pooled
    Py_ssize_t output_from   # and from here to the end of the history
    Py_ssize_t[NUM_PLACES] lost       # tokens since the followed text agreed, by place
    MatchC[ALL] candidates  # of the last proposal, as they were found
    int num_candidates
    Py_ssize_t base          # length of the history then
    Py_ssize_t num_records
    JudgedC* records         # max_draft
    float* features          # max_draft * JUDGED * NGS_FEATURES

# Working memory of a tree while it grows.
cdef struct SuffixTreeC:
    GrowthC growth        # a leaf's place: its record * JUDGED + the choice
    MatchC[MAX_DRAFT][ALL] candidates  # those that agree with the tokens before each record
    int[MAX_DRAFT] num_candidates
    SuffixSlotC after     # in place of a slot, for what comes after another source's draft

cdef struct SuffixC:
    SuffixPoolC* pool        # NULL: nothing is shared
    const SuffixIndexC* index  # NULL: no static index
    bint prompts             # pool prompts too
    float floor              # a draft ends where the probability that all of it is right falls below it
    Py_ssize_t max_draft
    Py_ssize_t num_slots
    SuffixSlotC* slots
    JudgedC* records         # of all slots
    float* features          # of all slots
    ModelC* model
    SuffixTreeC* trees             # by lane
    int num_lanes


cdef int _vote(const ModelC* m, const MatchC* candidates, int n, Py_ssize_t position, ChoiceC* choices,
               JudgedC* r) noexcept nogil:
    """Gather the votes of live candidates, largest odds first; return the number of different tokens."""
    cdef uint16_t key, p
    cdef int num = 0
    cdef int i, k, run
    cdef ChoiceC moved
    r.num_votes = 0
    for i in range(n):
        if not candidates[i].live:
            continue
        key = reliable_key(&candidates[i], position)
        p = m.reliable[key].p
        k = 0
        while k < num and choices[k].token != candidates[i].token:
            k += 1
        if k == num:
            num += 1
            choices[k].token = candidates[i].token
            choices[k].odds = 0
            choices[k].best = 0
            choices[k].foreign = True
            choices[k].num_own = choices[k].num_pool = choices[k].run_own = choices[k].run_pool = 0
        choices[k].odds += m.odds[p >> 6]
        choices[k].foreign = choices[k].foreign and candidates[i].place == PLACE_STATIC
        run = candidates[i].run + <int>position
        if candidates[i].place == PLACE_OWN:
            choices[k].num_own += 1
            choices[k].run_own = <uint8_t>max(choices[k].run_own, run)
        else:
            choices[k].num_pool += 1
            choices[k].run_pool = <uint8_t>max(choices[k].run_pool, run)
        if p >= choices[k].best:
            choices[k].best = p
            choices[k].best_candidate = i
        if position < VOTED:
            r.votes[r.num_votes] = VoteC(candidates[i].token, key)
            r.num_votes += 1
    for i in range(1, num):
        moved = choices[i]
        k = i
        while k > 0 and choices[k - 1].odds < moved.odds:
            choices[k] = choices[k - 1]
            k -= 1
        choices[k] = moved
    return num


cdef void _judge(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, ChoiceC* choices, int num,
                 const MatchC* candidates, const token_t* before, JudgedC* r) noexcept nogil:
    """Judge the choices with the largest odds and note the likeliest."""
    cdef int k
    r.num = 1
    while r.num < num and r.num < JUDGED and choices[r.num].odds > LEAST_ODDS * choices[0].odds:
        r.num += 1
    model_judge(c.model, choices, r.num, num, candidates, &s.lately, before, h.len, r.position,
                s.features + s.num_records * JUDGED * NGS_FEATURES)
    memcpy(r.choices, choices, <size_t>r.num * sizeof(ChoiceC))
    r.chosen = 0
    for k in range(1, r.num):
        if choices[k].p > choices[r.chosen].p:
            r.chosen = k


cdef void _keep(MatchC* candidates, int n, int best) noexcept nogil:
    """Keep only a few candidates where all agree."""
    cdef int count = 0
    cdef int i
    for i in range(n):
        if candidates[i].live and i != best:
            count += 1
            candidates[i].live = count < KEPT


cdef JudgedC* suffix_consider(const SuffixC* c, SuffixSlotC* s, const HistoryC* h, MatchC* candidates, int n,
                              const token_t* before, int position, int after) noexcept nogil:
    """Let n candidates vote on what comes after `position` drafted tokens and add a record; NULL: no votes.

    `after` is the index of the last of these tokens. `before` points past the text so far; its last two
    tokens are read.
    """
    cdef ChoiceC[ALL] choices
    cdef JudgedC* r = &s.records[s.num_records]
    cdef int num = _vote(c.model, candidates, n, position, choices, r)
    cdef int k
    if num == 0:
        return NULL
    r.position, r.after = position, after
    for k in range(JUDGED):
        r.next[k] = -1
    r.sure = sure_key(&choices[0], num, &s.lately, position)
    if r.sure >= 0:
        r.num = 1
        r.chosen = 0
        r.choices[0].token = choices[0].token
        r.choices[0].p = model_sure(c.model, r.sure)
        _keep(candidates, n, choices[0].best_candidate)
    else:
        _judge(c, s, h, choices, num, candidates, before, r)
    s.num_records += 1
    return r


cdef Py_ssize_t suffix_draft(SuffixC* c, SuffixSlotC* s, const HistoryC* h, MatchC* candidates, token_t* out,
                             float* confidence, Py_ssize_t limit) noexcept nogil:
    """Draft token by token from the candidates."""
    cdef token_t[66] before  # the last two tokens of the history, then the draft
    cdef JudgedC* r
    cdef float all_right = 1
    cdef Py_ssize_t past = min(<Py_ssize_t>2, h.len)
    cdef int i, k
    memcpy(before, h.tokens + h.len - past, <size_t>past * sizeof(token_t))
    for i in range(<int>limit):
        r = suffix_consider(c, s, h, candidates, s.num_candidates, before + past + i, i, i - 1)
        if r == NULL:
            return i
        if i > 0:
            s.records[i - 1].next[s.records[i - 1].chosen] = i
        out[i] = before[past + i] = r.choices[r.chosen].token
        confidence[i] = r.choices[r.chosen].p
        all_right *= confidence[i]
        if all_right < c.floor:
            return i + 1
        for k in range(s.num_candidates):
            if candidates[k].live:
                candidates[k].live = candidates[k].token == out[i] and (
                    candidate_next(&candidates[k], h, c.pool, c.index, out, i + 1))
    return limit


cdef void _index(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    """Enter the contexts of new tokens."""
    cdef SuffixSlotC* s = &(<SuffixC*>state).slots[slot]
    lines_extend(&s.text.own, &s.next_own, h.tokens, s.num_indexed, h.len)
    s.num_indexed = h.len


cdef void suffix_give(SuffixC* c, SuffixSlotC* s, const HistoryC* h, bint over) noexcept nogil:
    """Write new output to the pool and, when the request is over, its prompt."""
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


cdef int _agreed(const SuffixC* c, const MatchC* candidate, const HistoryC* h, Py_ssize_t start,
                 Py_ssize_t* after) noexcept nogil:
    """Return how many of the new tokens a candidate had right; `after`: its position past all of them, or -1."""
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


cdef void _follow(SuffixC* c, SuffixSlotC* s, const HistoryC* h, Py_ssize_t start, int place,
                  bint praise) noexcept nogil:
    """Expect the text to continue where the best candidate's does; praise: the pool hears of each that was right."""
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
            if praise and place == PLACE_POOL:
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
    """Compare what was considered with what the target emitted."""
    cdef JudgedC* r
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
    suffix_follow(c, s, h, start, True)


cdef void suffix_follow(SuffixC* c, SuffixSlotC* s, const HistoryC* h, Py_ssize_t start, bint praise) noexcept nogil:
    _follow(c, s, h, start, PLACE_OWN, praise)
    if c.pool != NULL:
        _follow(c, s, h, start, PLACE_POOL, praise)
    if c.index != NULL:
        _follow(c, s, h, start, PLACE_STATIC, praise)


cdef inline void _offer(GrowthC* g, const JudgedC* r, int record, int choice, float all_right, bint first) noexcept nogil:
    cdef LeafC leaf = LeafC(all_right * r.choices[choice].p, r.choices[choice].p, r.choices[choice].token, r.after,
                            r.position, record * JUDGED + choice, first)
    growth_offer(g, &leaf)


cdef bint _consider(const SuffixC* c, SuffixTreeC* t, SuffixSlotC* s, const HistoryC* h, const token_t* before, int position,
                    int after, float all_right, bint first) noexcept nogil:
    """Let the next record's candidates vote and offer their choices; False if there are none."""
    cdef int record = <int>s.num_records
    cdef JudgedC* r = suffix_consider(c, s, h, t.candidates[record], t.num_candidates[record], before, position, after)
    cdef int k
    if r == NULL:
        return False
    if growth_has_room(&t.growth, position):
        # As in a draft without branches, the chosen one comes before its equals.
        _offer(&t.growth, r, record, r.chosen, all_right, first)
        for k in range(r.num):
            if k != r.chosen:
                _offer(&t.growth, r, record, k, all_right, False)
    return True


cdef void _go_on(const SuffixC* c, SuffixTreeC* t, SuffixSlotC* s, const HistoryC* h, const LeafC* leaf) noexcept nogil:
    """Consider what comes after the token that joined the tree last."""
    cdef token_t[66] before  # the last two tokens of the history, then the path
    cdef int past = <int>min(<Py_ssize_t>2, h.len)
    cdef int length = leaf.depth + 1, node = t.growth.n - 1
    cdef int parent = leaf.place // JUDGED, record = <int>s.num_records
    cdef MatchC* candidates = t.candidates[parent]
    cdef MatchC* agree = t.candidates[record]
    cdef int n = 0
    cdef int i, at = node
    memcpy(before, h.tokens + h.len - past, <size_t>past * sizeof(token_t))
    for i in range(past + length - 1, past - 1, -1):
        before[i] = t.growth.out[at]
        at = t.growth.parents[at]
    for i in range(t.num_candidates[parent]):
        if candidates[i].live and candidates[i].token == leaf.token:
            agree[n] = candidates[i]
            n += candidate_next(&agree[n], h, c.pool, c.index, before + past, length)
    t.num_candidates[record] = n
    if _consider(c, t, s, h, before + past + length, length, node, leaf.all_right, leaf.first):
        s.records[parent].next[leaf.place % JUDGED] = record


cdef Py_ssize_t suffix_tree(SuffixC* c, SuffixTreeC* t, SuffixSlotC* s, const HistoryC* h, token_t* out, int32_t* parents,
                            float* confidence, Py_ssize_t limit, Py_ssize_t width, const float* least) noexcept nogil:
    """Grow a tree from the slot's candidates; it ends like a draft without branches."""
    cdef LeafC leaf
    growth_begin(&t.growth, out, parents, confidence, width, least, 0)
    memcpy(t.candidates[0], s.candidates, <size_t>s.num_candidates * sizeof(MatchC))
    t.num_candidates[0] = s.num_candidates
    _consider(c, t, s, h, h.tokens + h.len, 0, -1, 1, True)
    while growth_join(&t.growth, &leaf) and t.growth.n < limit and leaf.all_right >= c.floor:
        _go_on(c, t, s, h, &leaf)
    return t.growth.n


cdef extern from "ngs_suffix.h" nogil:
    int ngs_ones(uint32_t mask)


cdef inline void _expect_nothing(SuffixSlotC* s) noexcept nogil:
    cdef int place
    for place in range(NUM_PLACES):
        s.text.expected[place] = -1


cdef Status _reserve(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t extra) noexcept nogil:
    cdef SuffixSlotC* s = &(<SuffixC*>state).slots[slot]
    return lines_reserve(&s.text.own, &s.next_own, h.tokens, h.len, extra)


cdef void _finish(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    suffix_give(c, &c.slots[slot], h, True)
    if c.pool != NULL:
        pool_close(c.pool, &c.slots[slot].writer)


cdef void _rewind(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t length) noexcept nogil:
    """The pool keeps what was generated; entries of the index beyond the history are skipped."""
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    _finish(state, slot, h)
    if s.num_indexed:
        lines_rewind(&s.text.own, &s.next_own, length)
    s.num_indexed = min(s.num_indexed, length)
    s.text.prompt_len = min(s.text.prompt_len, length)
    s.prompt_from = s.output_from = length
    _expect_nothing(s)
    s.lately.run = s.lately.history = 0
    s.num_records = 0
    s.num_candidates = 0


cdef void _extend(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t start, Joined how) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    if how == JOINED_OUTPUT and s.base == start and s.num_candidates + s.num_records > 0:
        suffix_learn(c, s, h, start)
    else:
        _expect_nothing(s)
    s.num_records = 0
    s.num_candidates = 0
    if how != JOINED_OUTPUT:
        s.text.prompt_len = s.output_from = h.len
        if how == JOINED_AGAIN:
            s.prompt_from = h.len
    elif h.len - s.output_from >= PENDING:
        suffix_give(c, s, h, False)


cdef void _fetch(void* state, Py_ssize_t slot, const HistoryC* h, Fetch what) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    cdef Py_ssize_t i
    if what == FETCH_STATE:
        for i in range(<Py_ssize_t>sizeof(SuffixSlotC) // LINE):
            ngs_prefetch(<char*>s + i * LINE)
        for i in range(2 * <Py_ssize_t>sizeof(JudgedC) // LINE):
            ngs_prefetch(<char*>s.records + i * LINE)
    elif what == FETCH_ENTRIES:
        lines_fetch(&s.text.own, h.tokens, s.num_indexed, h.len)
    else:
        match_fetch(&s.text, h, c.pool, what == FETCH_PLACES)


cdef void _find(SuffixC* c, SuffixSlotC* s, const HistoryC* h) noexcept nogil:
    """Find the candidates of a proposal."""
    s.base = h.len
    s.num_records = 0
    s.num_candidates = match(&s.text, h, c.pool, &s.writer, s.candidates)
    if c.index != NULL:
        s.num_candidates += match_static(&s.text, h, c.index, s.candidates, s.num_candidates)


cdef Py_ssize_t _propose(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, float* confidence,
                         Py_ssize_t limit, int lane) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    cdef MatchC[ALL] candidates
    _find(c, s, h)
    memcpy(candidates, s.candidates, <size_t>s.num_candidates * sizeof(MatchC))
    return suffix_draft(c, s, h, candidates, out, confidence, limit)


cdef Py_ssize_t _propose_tree(void* state, Py_ssize_t slot, const HistoryC* h, token_t* out, int32_t* parents,
                              float* confidence, Py_ssize_t limit, Py_ssize_t width,
                              const float* least, int lane) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.slots[slot]
    _find(c, s, h)
    return suffix_tree(c, &c.trees[lane], s, h, out, parents, confidence, limit, width, least)


cdef Py_ssize_t _propose_after(void* state, Py_ssize_t slot, const HistoryC* h, Py_ssize_t ahead, token_t* out,
                               float* confidence, Py_ssize_t limit, int lane) noexcept nogil:
    """Go on from the slot's candidates where they agree with the other draft, and look its last tokens up."""
    cdef SuffixC* c = <SuffixC*>state
    cdef SuffixSlotC* s = &c.trees[lane].after
    cdef JudgedC* records = s.records
    cdef float* features = s.features
    cdef MatchC[ALL] candidates
    s[0] = c.slots[slot]
    s.records, s.features = records, features
    if s.base == h.len - ahead and s.num_candidates > 0:
        suffix_follow(c, s, h, s.base, False)
    else:
        _expect_nothing(s)
    _find(c, s, h)
    memcpy(candidates, s.candidates, <size_t>s.num_candidates * sizeof(MatchC))
    return suffix_draft(c, s, h, candidates, out, confidence, limit)


cdef const char* _check(void* state, Py_ssize_t slot, const HistoryC* h) noexcept nogil:
    cdef SuffixSlotC* s = &(<SuffixC*>state).slots[slot]
    cdef Py_ssize_t i, k
    for i in range(s.num_records):
        for k in range(s.records[i].num):
            if s.records[i].next[k] >= 0 and not i < s.records[i].next[k] < s.num_records:
                return "suffix: the record after a choice is out of order"
    if s.num_indexed != h.len:
        return "suffix: tokens of the history were not indexed"
    if s.text.prompt_len > h.len or s.prompt_from > h.len or s.output_from > h.len:
        return "suffix: a noted length exceeds the history"
    if s.text.expected[0] >= h.len:
        return "suffix: the text is expected to continue beyond its end"
    return NULL


cdef size_t _nbytes(void* state) noexcept nogil:
    cdef SuffixC* c = <SuffixC*>state
    cdef size_t records = <size_t>c.max_draft * (sizeof(JudgedC) + JUDGED * NGS_FEATURES * sizeof(float))
    cdef size_t total = sizeof(ModelC) + <size_t>c.num_lanes * (sizeof(SuffixTreeC) + records)
    cdef Py_ssize_t i
    for i in range(c.num_slots):
        total += sizeof(SuffixSlotC) + lines_nbytes(&c.slots[i].text.own)
        total += lines_nbytes(&c.slots[i].next_own.lines) + c.slots[i].next_own.rest.bytes
        total += records
    return total


cdef void _release(void* state, Py_ssize_t slot) noexcept nogil:
    cdef SuffixSlotC* s = &(<SuffixC*>state).slots[slot]
    lines_free(&s.text.own)
    lines_free(&s.next_own.lines)
    ngs_release_rest(&s.next_own.rest)


@cython.final
@cython.no_gc_clear  # __dealloc__ must still see the pool, to close the blocks that slots write to
cdef class SuffixSource(Source):
    """SuffixSource(slots, pool, max_draft, floor, prompts, weights, index=None, room=4096): the source behind "suffix".

    Args:
        slots: Number of slots, >= 1.
        pool: The SuffixPool to read and write, kept alive, or None: requests share nothing.
        max_draft: Longest draft in tokens, 1..64.
        floor: A draft ends where the probability that all of it is right falls below this, 0..1.
        prompts: Write prompts to the pool too, not only output.
        weights: The network's, float32, shape (1153,): inputs by feature, biases, outputs, bias.
        index: The SuffixIndex to read, kept alive, or None: only the texts of requests are read.
        room: Tokens that a slot's own lines have room for at first, >= 1; they grow by half at a time.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: The state cannot be allocated.
    """

    cdef SuffixC _state
    cdef readonly SuffixPool pool
    cdef readonly SuffixIndex index

    def __cinit__(self, Py_ssize_t slots, SuffixPool pool, Py_ssize_t max_draft, double floor, bint prompts, weights,
                  SuffixIndex index=None, Py_ssize_t room=4096):
        cdef Py_ssize_t i
        if slots < 1:
            raise InputError(f"slots must be >= 1, got {slots}")
        if not (1 <= max_draft <= MAX_DRAFT and 0 <= floor <= 1):
            raise InputError(f"max_draft must be in 1..{MAX_DRAFT} and floor in 0..1, got {max_draft} and {floor}")
        if room < 1:
            raise InputError(f"room must be >= 1, got {room}")
        self.name = "suffix"
        self.slots = slots
        self.max_history = LONGEST_HISTORY
        self.pool = pool
        self.index = index
        self._state.pool = &pool.c if pool is not None else NULL
        self._state.index = &index.c if index is not None else NULL
        self._state.prompts = prompts
        self._state.floor = floor
        self._state.max_draft = max_draft
        self._state.num_slots = slots
        self._state.slots = <SuffixSlotC*>self.take(slots, sizeof(SuffixSlotC))
        self._state.model = <ModelC*>self.take(1, sizeof(ModelC))
        # Whole blocks: of a large one, the system gives only the pages of slots that are used.
        self._state.records = <JudgedC*>self.take(slots * max_draft, sizeof(JudgedC))
        self._state.features = <float*>self.take(slots * max_draft, JUDGED * NGS_FEATURES * sizeof(float))
        for i in range(slots):
            self._state.slots[i].next_own.first_room = room
            self.make_slot(i)
        self.take_weights(weights)
        model_start(self._state.model)
        self.c.state, self.c.max_draft = &self._state, max_draft
        self.c.reserve, self.c.rewind = _reserve, _rewind
        self.c.index, self.c.extend = _index, _extend
        self.c.propose, self.c.propose_tree = _propose, _propose_tree
        self.c.propose_after = _propose_after
        self.c.finish = _finish
        self.c.calibrated = True
        self.c.check, self.c.nbytes = _check, _nbytes
        self.c.fetch, self.c.release = _fetch, _release

    cdef int make_lanes(self, int num_lanes) except -1:
        cdef Py_ssize_t most = self._state.max_draft
        cdef int lane
        self._state.trees = <SuffixTreeC*>self.take(num_lanes, sizeof(SuffixTreeC))
        for lane in range(num_lanes):
            self._state.trees[lane].after.records = <JudgedC*>self.take(most, sizeof(JudgedC))
            self._state.trees[lane].after.features = <float*>self.take(most, JUDGED * NGS_FEATURES * sizeof(float))
        self._state.num_lanes = num_lanes
        return 0

    cdef void make_slot(self, Py_ssize_t i) noexcept:
        cdef SuffixSlotC* s = &self._state.slots[i]
        s.records = self._state.records + i * self._state.max_draft
        s.features = self._state.features + i * self._state.max_draft * JUDGED * NGS_FEATURES
        s.writer.block = -1
        s.base = -1
        s.lately.hits = 0.5
        _expect_nothing(s)

    cdef int take_weights(self, weights) except -1:
        cdef ModelC* m = self._state.model
        cdef Py_ssize_t num = sizeof(m.net) // sizeof(float)
        cdef const float[::1] view
        array = np.asarray(weights)
        if array.shape != (num,) or array.dtype != np.float32:
            raise InputError(f"weights must be float32 of shape ({num},), got {array.dtype} of {array.shape}")
        view = np.ascontiguousarray(array)
        memcpy(&m.net, &view[0], sizeof(m.net))

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self._state.slots != NULL:
            for i in range(self._state.num_slots):
                if self.pool is not None and self._state.slots[i].features != NULL:
                    pool_close(&self.pool.c, &self._state.slots[i].writer)
                _release(&self._state, i)

    @property
    def floor(self):
        """Return the floor: a draft ends where the probability that all of it is right falls below it.

        May be set, 0..1. One thread at a time, and not during the drafter's calls.
        """
        return self._state.floor

    @floor.setter
    def floor(self, double floor):
        if not 0 <= floor <= 1:
            raise InputError(f"floor must be in 0..1, got {floor}")
        self._state.floor = <float>floor

    def match_length(self, Py_ssize_t slot, token_t token):
        """Return how many of the newest tokens match the text before the place where a proposal found `token`.

        Args:
            slot: 0 <= slot < slots.
            token: The first token of a draft.

        Returns:
            int: How many of the newest 32 tokens equal those before `token`, at the place of the slot's
            last proposal that agrees most; a mismatch does not end the count. 0 if no place has the token.

        Raises:
            InputError: slot is out of range.

        Cost: O(1). One thread at a time, and not during the drafter's calls.
        """
        cdef SuffixSlotC* s
        cdef int most = 0
        cdef int i
        if not 0 <= slot < self.slots:
            raise InputError(f"slot must be in 0..{self.slots - 1}, got {slot}")
        s = &self._state.slots[slot]
        for i in range(s.num_candidates):
            if s.candidates[i].token == token:
                most = max(most, ngs_ones(s.candidates[i].mask))
        return most

    def considered(self, Py_ssize_t slot):
        """Return the choices that the slot's last proposal judged, for training and inspection.

        Args:
            slot: 0 <= slot < slots.

        Returns:
            (positions, after, tokens, chosen, probabilities, features): int32 (n,), int32 (n,), int32 (n,),
            bool (n,), float32 (n,) and float32 (n, 34), one row per judged choice; copies. A choice may come
            after `positions` drafted tokens, of which `after` is the index of the last, -1 = none.

        Raises:
            InputError: slot is out of range.

        One thread at a time, and not during the drafter's calls.
        """
        cdef SuffixSlotC* s
        cdef float[:, ::1] rows
        cdef Py_ssize_t n = 0
        cdef Py_ssize_t i, k
        if not 0 <= slot < self.slots:
            raise InputError(f"slot must be in 0..{self.slots - 1}, got {slot}")
        s = &self._state.slots[slot]
        for i in range(s.num_records):
            n += s.records[i].num if s.records[i].sure < 0 else 0
        positions, after, tokens = (np.empty(n, np.int32) for _ in range(3))
        chosen, probabilities = np.empty(n, np.bool_), np.empty(n, np.float32)
        features = np.empty((n, <Py_ssize_t>NGS_FEATURES), np.float32)
        if n:
            rows = features
            n = 0
            for i in range(s.num_records):
                if s.records[i].sure >= 0:
                    continue
                memcpy(&rows[n, 0], s.features + i * JUDGED * NGS_FEATURES,
                       <size_t>(s.records[i].num * NGS_FEATURES) * sizeof(float))
                for k in range(s.records[i].num):
                    positions[n] = s.records[i].position
                    after[n] = s.records[i].after
                    tokens[n] = s.records[i].choices[k].token
                    chosen[n] = k == s.records[i].chosen
                    probabilities[n] = s.records[i].choices[k].p
                    n += 1
        return positions, after, tokens, chosen, probabilities, features
