"""Offers: every source drafts as far as it can, an AutoPolicy takes the best and learns from all.

The caller holds the drafter's lock.
"""

from libc.stdlib cimport calloc, free

from ngramspec._branches cimport branches_prune
from ngramspec._calibration cimport calibration_learn
from ngramspec._driver cimport SlotC, driver_offer, driver_shorten, driver_take
from ngramspec._history cimport common_prefix
from ngramspec._source cimport Source


cdef bint offers_ask(Slots drafter, Py_ssize_t slot, Py_ssize_t room):
    """Let all sources draft, up to the token behind the last that may be sent; tell whether one of them did.

    That one is learnt from, too: the target says what comes there.
    """
    cdef SlotC* s = &drafter.d.slots[slot]
    cdef Py_ssize_t i
    driver_offer(&drafter.d, slot, min(room + 1, drafter.d.max_draft) if room > 0 else 0)
    for i in range(drafter.d.num_sources):
        if s.made[i] > 0:
            return True
    return False


cdef bint offers_best(Slots drafter, AutoPolicy policy, Py_ssize_t slot, Py_ssize_t room, Py_ssize_t batch_tokens,
                      Py_ssize_t decoding, CandidateC* best) except -1:
    """Make the draft that is worth most the pending one, whole, and describe it; False when there is none."""
    cdef SlotC* s = &drafter.d.slots[slot]
    cdef double net, top = 0.0
    cdef Py_ssize_t i, source = -1, n = 0
    for i in range(drafter.d.num_sources):
        n += s.made[i] > 0
    for i in range(drafter.d.num_sources):
        if s.made[i] <= 0:
            continue
        _describe(drafter, policy, s, i, room, best)
        net = policy.net_of(best, batch_tokens, decoding) if n > 1 else 0.0
        if source < 0 or net > top:
            source, top = i, max(net, 0.0)
    if source < 0:
        return False
    _describe(drafter, policy, s, source, room, best)
    driver_take(&drafter.d, slot, source, s.made[source])
    return True


cdef int offers_share(Slots drafter, AutoPolicy policy, const int32_t[::1] slots, const int32_t[::1] limits,
                      Py_ssize_t most) except -1:
    """Make the best drafts of slots that share a pass pending, as much of each as pays, up to limits and `most`."""
    cdef Py_ssize_t i, room, n = slots.shape[0]
    cdef CandidateC* candidates = <CandidateC*>calloc(<size_t>n + 1, sizeof(CandidateC))
    if candidates == NULL:
        raise MemoryError("no memory for the candidates")
    try:
        for i in range(n):
            room = min(<Py_ssize_t>limits[i], most)
            if offers_ask(drafter, slots[i], room):
                offers_best(drafter, policy, slots[i], room, n, n, &candidates[i])
        policy.choose_all(candidates, n, n, n, n * (1 + drafter.d.max_draft))
        for i in range(n):
            driver_shorten(&drafter.d, slots[i], candidates[i].chosen)
    finally:
        free(candidates)
    return 0


cdef int offers_learn(Slots drafter, AutoPolicy policy, Py_ssize_t slot, const token_t* tokens,
                      Py_ssize_t n) except -1:
    """Learn from what was emitted after the last question, for every source, whether its draft was sent."""
    cdef SlotC* s = &drafter.d.slots[slot]
    cdef token_t* row
    cdef float* claims
    cdef Py_ssize_t i, known
    for i in range(drafter.d.num_sources):
        row, claims = s.rows + i * drafter.d.max_draft, s.claims + i * drafter.d.max_draft
        if s.branched and s.made[i] > 0:  # the claims of a chain are learnt from: that of the likeliest tokens
            s.made[i] = branches_prune(row, s.parents, claims, s.made[i])
        known = min(s.made[i], n)
        if known > 0:
            calibration_learn(policy.calibrations.of((<Source>drafter._sources[i]).name), claims, known,
                              common_prefix(row, tokens, known))
    return 0


cdef int _describe(Slots drafter, AutoPolicy policy, const SlotC* s, Py_ssize_t source, Py_ssize_t room,
                   CandidateC* c) except -1:
    c.p = s.claims + source * drafter.d.max_draft
    c.n = s.made[source]
    c.room = room
    c.calibration = policy.calibrations.of((<Source>drafter._sources[source]).name)
    return 0
