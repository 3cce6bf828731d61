# AdaptC: a probability that adapts to what happens, in 4 bytes.
from ngramspec._native.core.types cimport uint16_t

cdef enum:
    ADAPT_RATES = 400     # the rate falls as 1 / (n + 1.5) down to 1 / ADAPT_RATES

cdef struct AdaptC:
    uint16_t p            # probability * 65535
    uint16_t n            # updates so far, saturating

cdef inline float adapt_probability(const AdaptC* a) noexcept nogil:
    return <float>a.p * <float>(1.0 / 65535.0)


cdef inline void adapt_learn(AdaptC* a, bint right) noexcept nogil:
    cdef float rate = 1.0 / (<float>a.n + 1.5)
    cdef float p = <float>a.p
    p += ((65535.0 if right else 0.0) - p) * rate
    a.p = <uint16_t>(p + 0.5)
    if a.n < ADAPT_RATES:
        a.n += 1
