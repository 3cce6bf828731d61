# Proposals: drafts for the slots of a batch.
from ngramspec._native.core.types cimport int32_t, int64_t, token_t
from ngramspec._native.drafter.lanes cimport LanesC
from ngramspec._native.drafter.offer cimport AskC
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.chooser cimport OfferC

# A batch to draft for.
cdef struct ProposalsC:
    const LanesC* lanes
    const int32_t* slots
    const int32_t* limits
    Py_ssize_t num
    token_t* rows
    Py_ssize_t width      # of a row
    int32_t* parents      # rows like `rows`, NULL = chains
    int32_t* lens
    AskC ask              # but for limit and room
    int64_t batch         # its number; no other batch of the drafter has it
    Py_ssize_t padded     # rows of a pass that pads drafts to the longest, 0 = it does not
    bint alone            # no other drafts are in the pass yet
    bint judged           # a policy chooses what is sent, so that nothing is written yet
    Py_ssize_t* most      # if judged: tokens wanted of each row
    const float** least   # if judged: by tokens wanted; see Source
    OfferC* offers        # if judged: one per row
    int64_t next          # row that no lane has taken

# draft for all rows; without a policy also write what is sent
cdef void proposals_draft(ProposalsC* p) noexcept nogil
# with a policy: before that, set what it wants of each row, and after it, let it divide the pass and write what is
# sent. proposals_free takes also what failed
cdef int proposals_prepare(ProposalsC* p, AutoPolicy judge) except -1
cdef void proposals_choose(ProposalsC* p, AutoPolicy judge) noexcept nogil
cdef void proposals_free(ProposalsC* p) noexcept
