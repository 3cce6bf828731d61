# Calibration: how often a source's tokens were right, compared with the probability that it claimed.
# PassCosts: what a target's pass costs by the tokens in its batch, given or learnt.
from ngramspec._native.core.memory cimport Owner

cdef enum:
    NUM_PLACES = 4    # places in a chain that are learnt separately: token 0, token 1, tokens 2 and 3, later ones
    NUM_LEVELS = 12   # of claimed probabilities, by their log-odds

cdef double LEAST_P  # stands for probability 0 in chains

cdef struct CalibrationC:
    double weight[4][12]  # tokens seen around this level
    double mean[4][12]    # running mean of (1 if right else 0) - claimed, of those
    double lately[4][12]  # the same over the last few
    double trust[4][12]   # tokens that the prior counts as
    double excess[4][12]  # mean of both: what is added to a claim

cdef double calibration_apply(const CalibrationC* c, Py_ssize_t place, double claimed) noexcept nogil
cdef Py_ssize_t calibration_chain(const CalibrationC* c, const float* claimed, Py_ssize_t n, double* p) noexcept nogil
cdef void calibration_learn(CalibrationC* c, const float* claimed, Py_ssize_t n, Py_ssize_t num_right) noexcept nogil

# By source.
cdef class Calibrations(Owner):
    cdef dict ids               # name -> index in `each`
    cdef CalibrationC** each
    cdef Py_ssize_t count
    cdef CalibrationC* of(self, str name) except NULL

cdef enum:
    MOST_TOKENS = 1024  # largest batch with an entry of its own

cdef class PassCosts:
    cdef readonly bint timed     # a time was observed: costs are in seconds
    cdef double now[1025]        # cost by batch tokens, at pace 1; entry 0 is not used
    cdef double pace             # factor from `now` to present costs
    cdef double branch           # what a further branch of a tree costs beside the pass, in seconds; 0 = nothing known
    cdef double first[1025]      # the given costs, in their own unit
    cdef double prior[1025]      # the same, with the learnt steepness
    cdef double weight[1025]     # observations of this size, 0 = none; `now` is then filled from others
    cdef double shown[1025]      # an observed size's cost / its prior, as last used to fill its neighbours
    cdef object cost_table       # CostTable or None
    cdef double steep            # how much steeper than given
    cdef Py_ssize_t listed       # largest size of cost_table
    cdef Py_ssize_t age          # observations since weights were last halved
    cdef double at(self, Py_ssize_t tokens) noexcept nogil
    cdef bint seen_often(self, Py_ssize_t tokens) noexcept nogil
    cdef void add(self, Py_ssize_t tokens, double seconds) noexcept nogil
    cdef void add_branches(self, Py_ssize_t branches, double seconds) noexcept nogil
    cdef void show(self, Py_ssize_t tokens) noexcept nogil
    cdef void fill(self, Py_ssize_t a, Py_ssize_t b) noexcept nogil
    cdef double outer(self, Py_ssize_t tokens, Py_ssize_t step) noexcept nogil
    cdef void fade(self) noexcept nogil
    cdef void fit(self) noexcept nogil
    cdef void tilt(self, double steep) noexcept nogil
    cdef void refill(self) noexcept nogil
