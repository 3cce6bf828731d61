# A rolling hash of n-grams:
#   h(t1..tn) = sum of t_i * factor^(n-i)  mod 2^64
# so that sliding the window by one token costs two multiplications, whatever n is. With the factor LCG it is that
# of llama.cpp's ngram-mod (common/ngram-mod.cpp).
from ngramspec._native.core.types cimport hash_t, token_t, uint32_t, uint64_t

# An odd number, another one in each process: a factor of hashes that need not be llama.cpp's. Who knew it could
# write a prompt whose n-grams all have the same hash, or the same home in a table.
cdef uint64_t HASH_SEED

cdef extern from *:
    """
    #define NGS_LCG 6364136223846793005ULL
    """
    const uint64_t LCG "NGS_LCG"


cdef inline hash_t hash_step(hash_t h, token_t token, hash_t factor) noexcept nogil:
    return h * factor + <hash_t>token


cdef inline hash_t hash_power(Py_ssize_t n, hash_t factor) noexcept nogil:
    """factor^n: the weight that a token has when it leaves a window of n tokens."""
    cdef hash_t power = 1
    cdef Py_ssize_t _i
    for _i in range(n):
        power *= factor
    return power


cdef inline hash_t hash_slide(hash_t h, token_t leaving, token_t entering, hash_t power, hash_t factor) noexcept nogil:
    return hash_step(h, entering, factor) - <hash_t>leaving * power


cdef inline hash_t hash_tokens(const token_t* tokens, Py_ssize_t n, hash_t factor) noexcept nogil:
    cdef hash_t h = 0
    cdef Py_ssize_t i
    for i in range(n):
        h = hash_step(h, tokens[i], factor)
    return h


cdef inline uint32_t hash_fold(hash_t h) noexcept nogil:
    """Spread all 64 bits over 32, for tables whose size is a power of two."""
    h ^= h >> 32
    return <uint32_t>((h * HASH_SEED) >> 32)
