# Commit: what the target emitted joins a slot's history, and the policy learns what came of the drafts.
from ngramspec._native.core.types cimport Status, token_t
from ngramspec._native.drafter.driver cimport DriverC
from ngramspec._native.policy.auto cimport AutoPolicy, EmittedC

# append tokens, give feedback to the draft's source, teach the policy whose calibrations the driver has (None = there
# is none), and add to `emitted`, unless it is NULL, what it learnt. The caller has checked num_accepted against the draft
cdef Status commit_tokens(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n,
                          Py_ssize_t num_accepted, EmittedC* emitted) noexcept nogil
# its last part: teach the policy what came of all drafts for tokens that have joined
cdef void commit_teach(DriverC* d, Py_ssize_t slot, const token_t* tokens, Py_ssize_t n, Py_ssize_t draft_len,
                       EmittedC* emitted) noexcept nogil
# where a policy counts the pass under way; NULL = there is none
cdef EmittedC* commit_counts(AutoPolicy judge) noexcept nogil
