"""Proposals: drafts for the slots of a batch, on one thread or several; who drafts a row does not show in the draft."""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ngramspec._native.core.types cimport ngs_add64, ngs_prefetch_read
from ngramspec._native.drafter.driver cimport DriverC, SlotC, driver_fetch, driver_shorten
from ngramspec._native.drafter.lanes cimport AHEAD, TOGETHER, lanes_begin, lanes_end, lanes_for, lanes_share
from ngramspec._native.drafter.offer cimport offer_ask, offer_best, offer_first, offer_wanted
from ngramspec._native.drafter.source cimport FETCH_PLACES, FETCH_STATE, FETCH_TEXTS


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


cdef int proposals_prepare(ProposalsC* p, AutoPolicy judge) except -1:
    """Ask the policy now: no lane can."""
    cdef const DriverC* d = p.lanes.drivers[0]
    cdef AskC ask = p.ask
    cdef Py_ssize_t room = d.max_draft + 1, i, most
    cdef const float* least
    judge.reserve(p.num)
    p.offers = <OfferC*>calloc(<size_t>p.num, sizeof(OfferC))
    p.most = <Py_ssize_t*>calloc(<size_t>p.num + 1, sizeof(Py_ssize_t))
    p.least = <const float**>calloc(<size_t>room, sizeof(float*))
    if p.offers == NULL or p.most == NULL or p.least == NULL:
        raise MemoryError("no memory for the candidates")
    for i in range(p.num):
        ask.limit = min(<Py_ssize_t>p.limits[i], p.width)
        most = p.most[i] = offer_wanted(d, judge, &ask)
        if not ask.width or p.least[most] != NULL:
            continue
        least = judge.least_of(ask.batch_tokens, ask.decoding, most)
        if least == NULL:
            continue
        p.least[most] = <const float*>malloc(<size_t>room * sizeof(float))  # the policy has one for all
        if p.least[most] == NULL:
            raise MemoryError("no memory for the candidates")
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


cdef void proposals_free(ProposalsC* p) noexcept:
    cdef Py_ssize_t i
    if p.least != NULL:
        for i in range(p.lanes.drivers[0].max_draft + 1):
            free(<void*>p.least[i])
    free(p.least)
    free(p.most)
    free(p.offers)
