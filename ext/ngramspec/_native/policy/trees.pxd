# TreeC: a tree that could be sent. TreeValues: what its tokens are worth, and in which order.
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.policy.costs cimport CalibrationC

cdef struct TreeC:
    token_t* tokens       # NULL = no tree
    int32_t* parents      # the index of the token before each, -1 = the text
    float* claims         # the probability that each is right if its parent is

cdef class TreeValues:
    cdef Py_ssize_t width    # there is room for fewer tokens than this
    cdef double* reached     # the probability that a token and all before it are right
    cdef double* p           # the probability that it is right if its parent is
    cdef double* rest        # how much more than fresh text the text is worth that ends with it
    cdef double* gain        # what it saves, in tokens
    cdef double* path        # a chain of likeliest children: their p ...
    cdef double* worth       # ... what sending 1, 2, ... of them is worth ...
    cdef double* best        # ... and what the text before each of them is worth
    cdef double* memory      # holds these seven
    cdef int32_t* first      # likeliest child, -1 = none
    cdef int32_t* depth
    cdef int32_t* numbers    # indexes of tokens
    cdef int32_t* more       # the same
    cdef int32_t* memory32   # holds these four
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
