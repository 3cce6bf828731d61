"""Commit: what the target emitted joins a slot. The policy learns from every draft for it, sent or not."""

from ngramspec._native.core.history cimport common_prefix
from ngramspec._native.core.types cimport STATUS_OK
from ngramspec._native.drafter.driver cimport SlotC, driver_accept
from ngramspec._native.policy.costs cimport calibration_learn


cdef void commit_teach(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t draft_len,
                       EmittedC* emitted) noexcept nogil:
    """Show, for every source that the policy calibrates, what its draft got right."""
    cdef SlotC* s = &d.slots[slot]
    cdef token_t* row
    cdef Py_ssize_t i, known
    for i in range(d.num_sources):
        if d.calibrations[i] == NULL:
            continue
        row = s.rows + i * d.max_draft
        known = min(s.made[i], n)
        if known > 0:
            calibration_learn(d.calibrations[i], s.claims + i * d.max_draft, known, common_prefix(row, tokens, known))
    if emitted != NULL:
        emitted.tokens += n
        emitted.batch_tokens += 1 + draft_len


cdef Status commit_tokens(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil:
    cdef SlotC* s = &d.slots[slot]
    cdef bint taught = s.asked and judge is not None
    cdef Py_ssize_t draft_len = s.draft_len
    cdef Status status = driver_accept(d, slot, tokens, n, num_accepted)
    if taught and status == STATUS_OK:
        commit_teach(d, slot, tokens, n, draft_len, emitted)
    return status


cdef void commit_pass(AutoPolicy judge, const EmittedC* emitted) noexcept nogil:
    if emitted.batch_tokens:
        judge.add_step(emitted.tokens, emitted.batch_tokens, 0.0)
