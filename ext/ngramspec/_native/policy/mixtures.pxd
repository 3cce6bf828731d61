# Mixer: what is sent of a free draft and of one that took time.
from ngramspec._native.core.types cimport int32_t, token_t
from ngramspec._native.policy.auto cimport AutoPolicy
from ngramspec._native.policy.chooser cimport PassC, TreeC
from ngramspec._native.policy.costs cimport CalibrationC

# The other draft beside a free one, a tree.
cdef struct OtherC:
    const token_t* tokens
    const float* claims
    const CalibrationC* calibration
    double* gain           # what each of them saves, in tokens
    int32_t* at            # the index of the same token in the free draft, which counts as its; n = there is none
    Py_ssize_t n
    int32_t start          # the free token that it begins after, -1 = the text

# The first `num_free` tokens of the free draft and the first `end` of the other.
cdef struct MixC:
    Py_ssize_t num_free
    Py_ssize_t end

cdef class Mixer:
    cdef AutoPolicy policy
    cdef double* gains     # see OtherC
    cdef int32_t* at
    cdef int32_t* links    # parents of a free draft that is a chain
    cdef int32_t* eldest   # the first child of each free token; entry 0: of the text
    cdef void join(self, OtherC* other, const TreeC* tree, Py_ssize_t n, Py_ssize_t m, double apart) noexcept
    cdef MixC choose(self, const OtherC* other, const TreeC* tree, Py_ssize_t n, Py_ssize_t room, Py_ssize_t branches,
                     const PassC* step) noexcept
    cdef int32_t end_of(self, const OtherC* other, Py_ssize_t num_free) noexcept nogil
