# Offer: a draft for a slot, the best that its sources have.
from ngramspec._native.core.types cimport uint8_t
from ngramspec._native.drafter.driver cimport DriverC
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

# ask the sources, make the draft that is worth most pending, and return its length. `judge`: the policy whose
# calibrations the driver has; None = the first draft is taken
cdef Py_ssize_t offer_draft(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil
# its parts, for the rows of a batch. Without a policy
cdef Py_ssize_t offer_first(DriverC* d, Py_ssize_t slot, const AskC* ask) noexcept nogil
# with one: how many tokens it wants of each source; all sources draft; the best draft is made pending
cdef Py_ssize_t offer_wanted(const DriverC* d, AutoPolicy judge, const AskC* ask) noexcept nogil
cdef void offer_ask(DriverC* d, Py_ssize_t slot, const AskC* ask, Py_ssize_t most, const float* least) noexcept nogil
cdef Py_ssize_t offer_best(DriverC* d, AutoPolicy judge, Py_ssize_t slot, const AskC* ask, OfferC* best) noexcept nogil
