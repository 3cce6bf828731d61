# Candidate: a draft that could be sent, and how many of its tokens are worth sending.
from ngramspec._calibration cimport CalibrationC
from ngramspec._pass_costs cimport PassCosts

cdef struct CandidateC:
    const float* p                     # n claims: token i is right when all before it were
    Py_ssize_t n
    Py_ssize_t room                    # most tokens that the slot may draft
    const CalibrationC* calibration    # of its source; NULL = claims are true
    Py_ssize_t chosen                  # set: tokens to send
    double gain                        # set: tokens that is worth beyond no draft, costs not taken off
    double first                       # many: calibrated probability of the first token, -1 = nothing can be sent
    Py_ssize_t turn                    # many: index of the candidate whose turn is at this one's index
    Py_ssize_t kept                    # many: the best choice so far
    Py_ssize_t base                    # many: batch tokens and bound of the last choice
    Py_ssize_t most

# A pass for all: what it holds without drafts, how many slots share it, and tokens per unit of time.
cdef struct PassC:
    Py_ssize_t batch_tokens
    Py_ssize_t decoding
    double rate

cdef class Chooser:
    cdef Py_ssize_t max_draft
    cdef PassCosts costs
    cdef double* p          # calibrated probabilities of one chain
    cdef double* worth      # by drafted tokens, costs not taken off
    cdef double* price      # of the pass, in tokens, by drafted tokens
    cdef double* memory     # where these three are
    cdef void one(self, CandidateC* c, const PassC* step) noexcept
    cdef void many(self, CandidateC* candidates, Py_ssize_t n, const PassC* step, Py_ssize_t capacity) noexcept
    cdef double take_turns(self, CandidateC* candidates, Py_ssize_t n, const PassC* step, Py_ssize_t capacity,
                           bint whole) noexcept
    cdef void solve(self, CandidateC* c, const PassC* step, Py_ssize_t base, Py_ssize_t most) noexcept
    cdef void explore(self, CandidateC* c, Py_ssize_t base, Py_ssize_t most, double stake) noexcept
    cdef void set_prices(self, const PassC* step, Py_ssize_t base, Py_ssize_t n) noexcept
    cdef bint may_pay(self, Py_ssize_t n) noexcept
    cdef double first_of(self, const CandidateC* c) noexcept
