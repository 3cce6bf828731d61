# Commit: what the target emitted joins a slot's history, and the policy learns what came of the drafts.
from ngramspec._native.core.types cimport Status, token_t
from ngramspec._native.drafter.driver cimport DriverC
from ngramspec._native.policy.auto cimport AutoPolicy

# What a policy learns of passes: tokens emitted, and tokens in their batches.
cdef struct EmittedC:
    Py_ssize_t tokens
    Py_ssize_t batch_tokens

# append tokens, give feedback to the draft's source, teach the policy whose calibrations the driver has (None = there
# is none), and add to `emitted`, unless it is NULL, what it learnt. The caller has checked num_accepted against the draft
cdef Status commit_tokens(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil
# its last part: teach the policy what came of all drafts for tokens that have joined
cdef void commit_teach(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t draft_len,
                       EmittedC* emitted) noexcept nogil
# report to the policy how many tokens a pass emitted, and forget it
cdef void commit_pass(AutoPolicy judge, EmittedC* emitted) noexcept nogil
