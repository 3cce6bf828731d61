# TreeC: a tree that could be sent. TreeValues: what its tokens are worth, and in which order.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.policy.costs cimport CalibrationC, Calibrations, PassCosts

cdef double DOUBT  # part of what a draft adds to a pass that it must gain besides

cdef struct TreeC:
    token_t* tokens       # NULL = no tree
    int32_t* parents      # the index of the token before each, -1 = the text
    float* claims         # the probability that each is right if its parent is

cdef class TreeValues(Owner):
    cdef Py_ssize_t width    # there is room for fewer tokens than this
    cdef double* reached     # the probability that a token and all before it are right
    cdef double* p           # the probability that it is right if its parent is
    cdef double* rest        # how much more than fresh text the text is worth that ends with it
    cdef double* gain        # what it saves, in tokens
    cdef double* path        # a chain of likeliest children: their p ...
    cdef double* worth       # ... what sending 1, 2, ... of them is worth ...
    cdef double* best        # ... and what the text before each of them is worth
    cdef int32_t* first      # likeliest child, -1 = none
    cdef int32_t* depth
    cdef int32_t* numbers    # indexes of tokens
    cdef int32_t* more       # the same
    cdef float* least        # see least_of
    cdef double reach(self, const TreeC* t, const CalibrationC* c, Py_ssize_t n) noexcept nogil
    cdef Py_ssize_t reach_to(self, TreeC* t, const CalibrationC* c, Py_ssize_t n, Py_ssize_t most,
                             double* first) noexcept nogil
    cdef void value(self, TreeC* t, Py_ssize_t n, Py_ssize_t num, const double* price, double branch,
                    double* worth) noexcept nogil
    cdef double save(self, const TreeC* t, Py_ssize_t n, const double* price, double branch) noexcept nogil
    cdef const float* least_of(self, const double* price, Py_ssize_t most, Py_ssize_t n) noexcept nogil
    cdef int32_t value_rests(self, const TreeC* t, Py_ssize_t n, const double* price) noexcept nogil
    cdef int32_t find_firsts(self, const TreeC* t, Py_ssize_t n) noexcept nogil
    cdef Py_ssize_t find_path(self, const TreeC* t, Py_ssize_t n) noexcept nogil
    cdef Py_ssize_t branches_of(self, const TreeC* t, Py_ssize_t n) noexcept nogil
    cdef void arrange(self, TreeC* t, Py_ssize_t n, Py_ssize_t num) noexcept nogil
    cdef void reorder(self, TreeC* t, const int32_t* order, const int32_t* place, Py_ssize_t n) noexcept nogil

# OfferC: a candidate, a draft that could be sent, and how many of its tokens are worth sending.
# Chooser: chooses that for the candidates of a pass.

cdef struct OfferC:
    const float* p                     # n claims: the probability that token i is right if all before it are
    TreeC tree                         # its tokens, which may be put into another order; no tokens = a chain
    Py_ssize_t n
    Py_ssize_t room                    # most tokens that the slot may draft
    Py_ssize_t streak                  # its newest tokens in a row that drafts had right; -1 = its draft may cost anything
    const CalibrationC* calibration    # of its source; NULL = claims are taken as they are
    Py_ssize_t chosen                  # set: tokens to send; -1 = not solved yet
    double gain                        # set: tokens gained over no draft, before costs
    double first                       # many: calibrated probability of the first token, -1 = nothing can be sent
    Py_ssize_t turn                    # many: entry i is the index of the i-th candidate to choose
    Py_ssize_t best                    # many: `chosen` of the best choice so far
    double* worth                      # many: by drafted tokens, before costs; valid if solved >= 0
    Py_ssize_t solved                  # many: tokens that `worth` covers

# A pass: its tokens without drafts, the slots that share it, and the tokens emitted per unit of time.
cdef struct PassC:
    Py_ssize_t batch_tokens
    Py_ssize_t decoding
    double rate

cdef class Chooser(Owner):
    cdef Py_ssize_t max_draft
    cdef PassCosts costs
    cdef double* p          # calibrated probabilities of one chain
    cdef double* worth      # by drafted tokens, before costs
    cdef double* price      # of the pass, in tokens, by drafted tokens
    cdef double* best       # what a text that ends before token i of a chain is worth more than a pass without drafts
    cdef TreeValues trees
    cdef double* worths     # many: `worth` of all candidates
    cdef Py_ssize_t num_worths
    cdef double rate        # that the newest choice went by, in tokens per unit of time
    cdef Py_ssize_t width(self) noexcept nogil
    cdef int reserve(self, Py_ssize_t n) except -1
    cdef void one(self, OfferC* c, const PassC* step) noexcept nogil
    cdef void many(self, OfferC* offers, Py_ssize_t n, const PassC* step, Py_ssize_t capacity) noexcept nogil
    cdef PassC at_most_attainable(self, const OfferC* offers, Py_ssize_t n, const PassC* step,
                                  Py_ssize_t room) noexcept nogil
    cdef double take_turns(self, OfferC* offers, Py_ssize_t n, const PassC* step, Py_ssize_t capacity,
                           bint whole) noexcept nogil
    cdef void in_turn(self, OfferC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most, Py_ssize_t room) noexcept nogil
    cdef Py_ssize_t solve(self, OfferC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most,
                          double* worth) noexcept nogil
    cdef void value(self, Py_ssize_t n, double* worth) noexcept nogil
    cdef const float* least_of(self, Py_ssize_t base, Py_ssize_t decoding, Py_ssize_t n) noexcept nogil
    cdef Py_ssize_t solve_tree(self, OfferC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most,
                               double* worth) noexcept nogil
    cdef void take_best(self, OfferC* c, const double* worth, Py_ssize_t most, const PassC* step,
                        Py_ssize_t base) noexcept nogil
    cdef double dearest(self, const OfferC* c, Py_ssize_t base) noexcept nogil
    cdef void explore(self, OfferC* c, Py_ssize_t base, Py_ssize_t most, double stake) noexcept nogil
    cdef Py_ssize_t add_gains(self, const OfferC* c, Py_ssize_t n, double* gains) noexcept nogil
    cdef void set_prices(self, const PassC* step, Py_ssize_t base, Py_ssize_t n) noexcept nogil
    cdef bint may_pay(self, double first, Py_ssize_t n) noexcept nogil
    cdef double first_of(self, const OfferC* c) noexcept nogil

# A list of (source, confidence, room) as native candidates.
cdef class OfferList(Owner):
    cdef OfferC* items
    cdef Py_ssize_t count
    cdef list views         # keeps the claims alive

cdef int describe(OfferC* c, Calibrations calibrations, str source, const float[::1] claims,
                  Py_ssize_t room, object streak) except -1
