"""Commit: what the target emitted joins a slot. The policy learns from every draft for it, sent or not."""

from ngramspec._native.core.history cimport common_prefix
from ngramspec._native.core.types cimport STATUS_OK, int32_t
from ngramspec._native.drafter.driver cimport SlotC, driver_accept
from ngramspec._native.policy.costs cimport calibration_learn


cdef bint _had_right(const DriverC* d, const SlotC* s, Py_ssize_t source, const token_t* tokens,
                     Py_ssize_t n) noexcept nogil:
    """Whether a source's draft said all that was emitted, as far as it went."""
    cdef const token_t* row = s.rows + source * d.max_draft
    cdef const int32_t* links = s.links + source * d.max_draft
    cdef Py_ssize_t length = s.lengths[source], right = 0, node = -1, i
    cdef bint other = False  # the draft goes on after `node`, but otherwise
    if length <= 0:
        return False
    if not s.branched:
        return common_prefix(row, tokens, min(length, n)) == min(length, n)
    for i in range(length):  # children come after their parent
        if links[i] != node:
            continue
        other = row[i] != tokens[right]
        if not other:
            node = i
            right += 1
            if right == n:
                return True
    return not other


cdef void commit_teach(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t draft_len,
                       EmittedC* emitted) noexcept nogil:
    """Note what drafts got right: for how long, and of which claims, for every source that the policy calibrates."""
    cdef SlotC* s = &d.slots[slot]
    cdef token_t* row
    cdef Py_ssize_t i, judged
    cdef bint right = False
    for i in range(d.num_sources):
        right = right or _had_right(d, s, i, tokens, n)
        if d.calibrations[i] == NULL:
            continue
        row = s.rows + i * d.max_draft
        judged = min(s.lengths[i], n)
        if judged > 0:
            calibration_learn(d.calibrations[i], s.claims + i * d.max_draft, judged, common_prefix(row, tokens, judged))
    s.streak = s.streak + n if right else 0
    if emitted != NULL:
        emitted.tokens += n
        emitted.batch_tokens += 1 + draft_len
        if emitted.slots == <const void*>d.slots:
            emitted.own += 1 + draft_len
            emitted.longest = max(emitted.longest, draft_len)


cdef Status commit_tokens(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef bint taught = s.asked and judge is not None
    cdef Py_ssize_t draft_len = s.draft_len
    cdef Status status = driver_accept(d, slot, tokens, n, num_accepted)
    if taught and status == STATUS_OK and n:
        commit_teach(d, slot, tokens, n, draft_len, emitted)
    return status


cdef EmittedC* commit_counts(AutoPolicy judge) noexcept nogil:
    return NULL if judge is None else &judge.emitted
