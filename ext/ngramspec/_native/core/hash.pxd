# The n-gram hash of llama.cpp's ngram-mod (common/ngram-mod.cpp), made rolling:
#   h(t1..tn) = sum of t_i * LCG^(n-i)  mod 2^64
# so that sliding the window by one token costs two multiplications, whatever n is.
from ngramspec._native.core.types cimport hash_t, token_t, uint32_t, uint64_t

# An odd number, another one in each process, that hashes of tables are multiplied by: who knew it could write
# a prompt whose n-grams all have the same home.
cdef uint64_t HASH_SEED

cdef inline hash_t hash_step(hash_t h, token_t token) noexcept nogil:
    return h * <hash_t>6364136223846793005u + <hash_t>token


cdef inline hash_t hash_power(Py_ssize_t n) noexcept nogil:
    """LCG^n: the weight that a token has when it leaves a window of n tokens."""
    cdef hash_t power = 1
    cdef Py_ssize_t _i
    for _i in range(n):
        power *= <hash_t>6364136223846793005u
    return power


cdef inline hash_t hash_slide(hash_t h, token_t leaving, token_t entering, hash_t power) noexcept nogil:
    return hash_step(h, entering) - <hash_t>leaving * power


cdef inline hash_t hash_tokens(const token_t* tokens, Py_ssize_t n) noexcept nogil:
    cdef hash_t h = 0
    cdef Py_ssize_t i
    for i in range(n):
        h = hash_step(h, tokens[i])
    return h


cdef inline uint32_t hash_fold(hash_t h) noexcept nogil:
    """Spread all 64 bits over 32, for tables whose size is a power of two."""
    h ^= h >> 32
    return <uint32_t>((h * HASH_SEED) >> 32)
