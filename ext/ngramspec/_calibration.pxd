# Calibration: how often a source's tokens were right, beside the probability that it claimed.

cdef enum:
    NUM_PLACES = 4    # places in a chain that are told apart: token 0, 1, 2 and 3, later ones
    NUM_LEVELS = 12   # of claimed probabilities, by their log-odds

cdef struct CalibrationC:
    double weight[4][12]  # tokens seen around this level
    double mean[4][12]    # running mean of (1 if right else 0) - claimed, of those
    double lately[4][12]  # the same of the last few
    double trust[4][12]   # tokens that what is known without them stands for
    double excess[4][12]  # mean of both: what to add to a claim

cdef void calibration_start(CalibrationC* c) noexcept nogil
cdef double calibration_apply(const CalibrationC* c, Py_ssize_t place, double claimed) noexcept nogil
cdef Py_ssize_t calibration_chain(const CalibrationC* c, const float* claimed, Py_ssize_t n, double* p) noexcept nogil
cdef void calibration_learn(CalibrationC* c, const float* claimed, Py_ssize_t n, Py_ssize_t num_right) noexcept nogil

# By source.
cdef class Calibrations:
    cdef dict ids               # name -> index in each
    cdef CalibrationC** each
    cdef Py_ssize_t count
    cdef CalibrationC* of(self, str name) except NULL
