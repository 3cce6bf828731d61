# Offer: a draft for a slot, the best that its sources have.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, int64_t, token_t, uint8_t
from ngramspec._native.drafter.driver cimport DriverC, LanesC
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.chooser cimport OfferC

# A request for a draft.
cdef struct AskC:
    Py_ssize_t limit         # most tokens to draft
    Py_ssize_t room          # most of them that may be sent
    const uint8_t* valid     # per token id: whether a draft may hold it; NULL = any id
    Py_ssize_t num_valid
    Py_ssize_t batch_tokens  # tokens of the pass without drafts
    Py_ssize_t decoding      # slots that share the pass
    Py_ssize_t width         # most tokens at one depth of a tree, 0 = a chain
    Py_ssize_t branches      # most branches of a tree, 0 = any number

# a request for a slot that has a pass to itself
cdef inline AskC ask_alone(Py_ssize_t limit, Py_ssize_t width) noexcept nogil:
    return AskC(limit=limit, room=limit, valid=NULL, num_valid=0, batch_tokens=1, decoding=1, width=width, branches=0)


# ask the sources, make the draft that is worth most pending, and return its length. `judge`: the policy whose
# calibrations the driver has; None = the first draft is taken
cdef Py_ssize_t offer_draft(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil
# its parts, for the rows of a batch. Without a policy
cdef Py_ssize_t offer_first(DriverC* d, Py_ssize_t slot, const AskC* ask) noexcept nogil
# with one: how many tokens it wants of each source; all sources draft; the best draft is made pending
cdef Py_ssize_t offer_wanted(const DriverC* d, AutoPolicy judge, const AskC* ask) noexcept nogil
cdef void offer_ask(DriverC* d, Py_ssize_t slot, const AskC* ask, Py_ssize_t most, const float* least) noexcept nogil
cdef Py_ssize_t offer_best(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil

# make what pays after n tokens of another source's draft pending, which are sent before it; return its length. `likely`: how
# probable each of them is if those before it are right; the first claim is that they and one more are. Where n-grams go on,
# they are right more or less often than elsewhere, so it is that which is calibrated. The pass is the one without any of them
cdef Py_ssize_t offer_after(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, const token_t* before,
                            const float* likely, Py_ssize_t n) noexcept nogil

# Proposals: drafts for the slots of a batch.

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
# with a policy: before that, set what it wants of each row, and after it, let it divide the pass and write what is sent
cdef int proposals_prepare(ProposalsC* p, Owner memory, AutoPolicy judge) except -1
cdef void proposals_choose(ProposalsC* p, AutoPolicy judge) noexcept nogil
