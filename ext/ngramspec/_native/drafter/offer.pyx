"""Offer: drafts for a slot. Sources are asked, what they drafted is valued, and the best draft becomes the pending one.

Without a policy that is the draft of the first source that has one: at most `limit` tokens, all chosen.
With a policy all sources draft, one token more than may be sent: the target emits a token there too,
so the policy can learn from it. It takes the draft that is worth most, and its choose_one or choose_all then
decides how much of it is sent.

Proposals are the drafts of a batch's slots, on one thread or several; who drafts a row does not show in the draft.
"""

from libc.string cimport memcpy

from ngramspec._native.core.types cimport STATUS_OK, int32_t, ngs_add64, ngs_prefetch_read, token_t
from ngramspec._native.drafter.driver cimport (
    AHEAD, MOST_AHEAD, TOGETHER, DriverC, SlotC, branches_few, branches_keep, driver_ask_after, driver_ask_all, driver_fetch,
    driver_propose, driver_prune, driver_shorten, driver_take, driver_take_after, lanes_begin, lanes_end, lanes_for,
    lanes_share,
)
from ngramspec._native.drafter.source cimport FETCH_PLACES, FETCH_STATE, FETCH_TEXTS
from ngramspec._native.policy.chooser cimport TreeC
from ngramspec._native.policy.costs cimport calibration_apply

cdef float LEAST = 1e-6


cdef Py_ssize_t _leading_valid(const AskC* ask, const token_t* draft, Py_ssize_t n) noexcept nogil:
    """The number of leading tokens that a draft may hold."""
    cdef Py_ssize_t i
    if ask.valid == NULL:
        return n
    for i in range(n):
        if draft[i] >= ask.num_valid or not ask.valid[draft[i]]:
            return i
    return n


cdef Py_ssize_t _keep_valid(const DriverC* d, SlotC* s, Py_ssize_t source, const AskC* ask) noexcept nogil:
    """Drop what a source's draft may not hold, with all that comes after it; return how many tokens are left."""
    cdef Py_ssize_t row = source * d.max_draft, n = s.lengths[source], i
    cdef int32_t* place = s.links + d.num_sources * d.max_draft
    if not s.branched:
        return _leading_valid(ask, s.rows + row, n)
    if _leading_valid(ask, s.rows + row, n) == n:
        return n
    for i in range(n):
        place[i] = _leading_valid(ask, s.rows + row + i, 1) == 1
    return branches_keep(s.rows + row, s.links + row, s.claims + row, n, place)


cdef Py_ssize_t offer_first(DriverC* d, Py_ssize_t slot, const AskC* ask) noexcept nogil:
    """Make the draft of the first source that has one pending, at most `limit` tokens; return its length."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t n = driver_propose(d, slot, ask.limit, ask.width)
    if ask.branches and n:
        n = branches_few(s.draft, s.parents, s.confidence, n, ask.branches, s.links + d.num_sources * d.max_draft)
        s.lengths[s.owner] = n
    n = _leading_valid(ask, s.draft, n)
    driver_shorten(d, slot, n)
    return n


cdef Py_ssize_t offer_wanted(const DriverC* d, AutoPolicy judge, const AskC* ask) noexcept nogil:
    """The tokens that a policy wants from each source: one more than may be sent, of a tree no more than it looks at."""
    cdef Py_ssize_t most = min(ask.limit, d.max_draft - 1) + 1 if ask.limit > 0 else 0
    return min(most, judge._max_draft) if ask.width else most


cdef void offer_ask(DriverC* d, Py_ssize_t slot, const AskC* ask, Py_ssize_t most, const float* least) noexcept nogil:
    """Let all sources draft, at most `most` tokens each; nothing is pending yet."""
    cdef SlotC* s = &d.slots[slot]
    cdef Py_ssize_t i
    driver_ask_all(d, slot, most, ask.width, least)
    for i in range(d.num_sources):
        s.lengths[i] = _keep_valid(d, s, i, ask)
    if ask.branches:
        driver_prune(d, slot, ask.branches)


cdef void _describe(const DriverC* d, const SlotC* s, Py_ssize_t source, Py_ssize_t room, OfferC* c) noexcept nogil:
    c.p = s.claims + source * d.max_draft
    c.tree = TreeC(NULL, NULL, NULL)
    if s.branched:
        c.tree = TreeC(s.rows + source * d.max_draft, s.links + source * d.max_draft, s.claims + source * d.max_draft)
    c.n = s.lengths[source]
    c.room = room
    c.chosen = -1
    c.streak = s.streak
    c.calibration = d.calibrations[source]


cdef Py_ssize_t offer_best(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil:
    """Make the draft that is worth most pending and describe it; return its length. Of several it is solved, too."""
    cdef SlotC* s = &d.slots[slot]
    cdef OfferC one
    cdef double net, top = 0.0
    cdef Py_ssize_t i, source = -1, n = 0
    best.n = best.room = best.chosen = 0
    best.calibration = NULL
    best.tree = TreeC(NULL, NULL, NULL)
    for i in range(d.num_sources):
        n += s.lengths[i] > 0
    for i in range(d.num_sources):
        if s.lengths[i] <= 0:
            continue
        _describe(d, s, i, ask.room, &one)
        net = judge.net_of(&one, ask.batch_tokens, ask.decoding) if n > 1 else 0.0
        if source < 0 or net > top:
            source, top, best[0] = i, max(net, 0.0), one
    if source < 0:
        return 0
    driver_take(d, slot, source, s.lengths[source])
    return s.draft_len


cdef Py_ssize_t offer_draft(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil:
    cdef Py_ssize_t most
    cdef const float* least = NULL
    if judge is None:
        best.n = best.chosen = offer_first(d, slot, ask)
        return best.n
    most = offer_wanted(d, judge, ask)
    if ask.width:  # the policy puts a tree into another order: it must know all of it
        least = judge.least_of(ask.batch_tokens, ask.decoding, most)
    offer_ask(d, slot, ask, most, least)
    return offer_best(d, judge, slot, ask, best)


cdef Py_ssize_t offer_after(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, const token_t* before,
                            const float* likely, Py_ssize_t n) noexcept nogil:
    cdef SlotC* t = &d.tails.slots[slot]
    cdef float* chain = t.claims + d.num_sources * d.max_draft
    cdef Py_ssize_t most = min(ask.limit, d.max_draft), i, length
    cdef float reached = 1
    cdef OfferC best
    for i in range(n):
        reached *= likely[i]
    reached = max(reached, LEAST)
    driver_shorten(d, slot, 0)
    if n > MOST_AHEAD or most <= 0 or driver_ask_after(d, slot, before, n, most) != STATUS_OK:
        return 0
    for i in range(d.num_sources):
        t.lengths[i] = _keep_valid(d.tails, t, i, ask)
        t.claims[i * d.max_draft] *= reached
        if judge is None and t.lengths[i] > 0:
            driver_take(d.tails, slot, i, t.lengths[i])
            break
    length = t.draft_len if judge is None else offer_best(d.tails, judge, slot, ask, &best)
    if judge is not None and length:
        memcpy(chain, likely, <size_t>n * sizeof(float))
        for i in range(length):
            chain[n + i] = <float>calibration_apply(best.calibration, i, t.confidence[i])
        chain[n] = min(chain[n] / reached, <float>1)
        best.p, best.n, best.room, best.chosen = chain, n + length, n + ask.room, -1
        best.calibration, best.streak = NULL, d.slots[slot].streak
        judge.solve(&best, ask.batch_tokens, ask.decoding)
        length = max(best.chosen - n, <Py_ssize_t>0)
    driver_take_after(d, slot, min(length, ask.room))
    return d.slots[slot].draft_len


cdef void _write_row(DriverC* d, Py_ssize_t slot, Py_ssize_t chosen, const ProposalsC* p, Py_ssize_t i) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    driver_shorten(d, slot, chosen)
    p.lens[i] = <int32_t>s.draft_len
    memcpy(p.rows + i * p.width, s.draft, <size_t>s.draft_len * sizeof(token_t))
    if p.parents != NULL:
        memcpy(p.parents + i * p.width, s.parents, <size_t>s.draft_len * sizeof(int32_t))


cdef void _fetch_row(const DriverC* d, const ProposalsC* p, Py_ssize_t i) noexcept nogil:
    cdef const SlotC* s
    if i + 3 * AHEAD < p.num:
        ngs_prefetch_read(&d.slots[p.slots[i + 3 * AHEAD]])
    if i + 2 * AHEAD < p.num:
        s = &d.slots[p.slots[i + 2 * AHEAD]]
        ngs_prefetch_read(s.history.tokens + s.history.len - 1)
        ngs_prefetch_read(s.rows)
        ngs_prefetch_read(s.claims)
        driver_fetch(d, p.slots[i + 2 * AHEAD], FETCH_STATE)
    if i + AHEAD < p.num:
        driver_fetch(d, p.slots[i + AHEAD], FETCH_PLACES)
    if i + 1 < p.num:
        driver_fetch(d, p.slots[i + 1], FETCH_TEXTS)


cdef void _propose_lane(void* job, int lane) noexcept nogil:
    """Take rows and draft for them until none is left."""
    cdef ProposalsC* p = <ProposalsC*>job
    cdef DriverC* d = p.lanes.drivers[lane]
    cdef AskC ask = p.ask
    cdef Py_ssize_t start = <Py_ssize_t>ngs_add64(&p.next, TOGETHER)
    cdef Py_ssize_t i
    while start < p.num:
        for i in range(start, min(start + TOGETHER, p.num)):
            _fetch_row(d, p, i)
            ask.limit = ask.room = min(<Py_ssize_t>p.limits[i], p.width)
            if p.judged:
                offer_ask(d, p.slots[i], &ask, p.most[i], p.least[p.most[i]])
            else:
                _write_row(d, p.slots[i], offer_first(d, p.slots[i], &ask), p, i)
        start = <Py_ssize_t>ngs_add64(&p.next, TOGETHER)


cdef bint _one_twice(const ProposalsC* p) noexcept nogil:
    """Whether a slot comes twice in the batch: then one thread drafts, in the order of the rows."""
    cdef SlotC* s
    cdef Py_ssize_t i
    for i in range(p.num):
        s = &p.lanes.drivers[0].slots[p.slots[i]]
        if s.drafted == p.batch:
            return True
        s.drafted = p.batch
    return False


cdef void proposals_draft(ProposalsC* p) noexcept nogil:
    cdef int lanes = lanes_for(p.lanes, p.num)
    if lanes > 1 and _one_twice(p):
        lanes = 1
    p.next = 0
    lanes_begin(p.lanes, lanes)
    lanes_share(_propose_lane, p, lanes)
    lanes_end(p.lanes, lanes)


cdef int proposals_prepare(ProposalsC* p, Owner memory, AutoPolicy judge) except -1:
    """Ask the policy now: no lane can."""
    cdef const DriverC* d = p.lanes.drivers[0]
    cdef AskC ask = p.ask
    cdef Py_ssize_t room = d.max_draft + 1, i, most
    cdef const float* least
    judge.reserve(p.num)
    p.offers = <OfferC*>memory.take(p.num, sizeof(OfferC))
    p.most = <Py_ssize_t*>memory.take(p.num + 1, sizeof(Py_ssize_t))
    p.least = <const float**>memory.take(room, sizeof(float*))
    for i in range(p.num):
        ask.limit = min(<Py_ssize_t>p.limits[i], p.width)
        most = p.most[i] = offer_wanted(d, judge, &ask)
        if not ask.width or p.least[most] != NULL:
            continue
        least = judge.least_of(ask.batch_tokens, ask.decoding, most)
        if least == NULL:
            continue
        p.least[most] = <const float*>memory.take(room, sizeof(float))  # the policy has one for all
        memcpy(<void*>p.least[most], least, <size_t>(most + 1) * sizeof(float))
    return 0


cdef void proposals_choose(ProposalsC* p, AutoPolicy judge) noexcept nogil:
    cdef DriverC* d = p.lanes.drivers[0]
    cdef AskC ask = p.ask
    cdef Py_ssize_t i, n = p.num
    cdef bint teaches = judge.teaches
    judge.teaches = teaches and p.alone  # of several drafters in a pass, the first tries sizes out
    for i in range(n):
        ask.limit = ask.room = min(<Py_ssize_t>p.limits[i], p.width)
        driver_shorten(d, p.slots[i], 0)  # a slot may be named twice: what it drafted first is not sent
        offer_best(d, judge, p.slots[i], &ask, &p.offers[i])
    judge.choose_all(p.offers, n, ask.batch_tokens, ask.decoding, ask.batch_tokens + n * d.max_draft)
    judge.teaches = teaches
    if p.padded:
        judge.even(p.offers, n, ask.batch_tokens, p.padded)
    if p.padded or judge.emitted.slots == <const void*>d.slots:  # else another drafter's rows may be padded
        judge.emitted.padded, judge.emitted.slots = p.padded, <const void*>d.slots
    for i in range(n):
        _write_row(d, p.slots[i], p.offers[i].chosen, p, i)
