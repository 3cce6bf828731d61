# EntryC: how often a token followed an n-gram, packed so that sorting 128-bit words groups the
# followers of an n-gram and spreads the n-grams evenly. Builds, merges and statistics files use sorted
# entries.
#
#   a   the newest three tokens of the n-gram, 21 bits each, mixed (a bijection), from bit 63 down
#   b   bits 43..63 oldest token of a 4-gram, else 0 | bits 22..42 follower | bits 0..21 count
#
# A count above ENTRY_COUNT_MAX is split over several entries with the same key: readers add them up.
#
# Also sorts packed entries, and the shorter form that n-grams of 1 and 2 tokens have.
from ngramspec._native.core.types cimport count_t, int32_t, token_t, uint32_t, uint64_t

cdef enum:
    TOKEN_BITS = 21
    STORED_TOKEN_MAX = 0x1FFFFF   # largest token id that files hold
    OLDEST_SHIFT = 43
    FOLLOWER_SHIFT = 22
    ENTRY_COUNT_MAX = 0x3FFFFF

cdef struct EntryC:
    uint64_t a
    uint64_t b

cdef struct KeyC:
    uint64_t a
    uint64_t oldest               # of a 4-gram, else 0


cdef inline uint64_t key_mask(Py_ssize_t size) noexcept nogil:
    """The bits of `a` that n-grams of this size use."""
    return ~<uint64_t>0 << (64 - TOKEN_BITS * (size if size < 3 else 3))


cdef inline uint64_t _mixed(uint64_t x, Py_ssize_t size) noexcept nogil:
    # The bits stay left-aligned when multiplied, and the xor with a shift by half of them is its own inverse.
    x *= <uint64_t>0x9E3779B97F4A7C15u
    x ^= (x >> ((TOKEN_BITS * (size if size < 3 else 3) + 1) >> 1)) & key_mask(size)
    return x * <uint64_t>0xD6E8FEB86659FD93u


cdef inline uint64_t _unmixed(uint64_t x, Py_ssize_t size) noexcept nogil:
    x *= <uint64_t>0xCFEE444D8B59A89Bu
    x ^= (x >> ((TOKEN_BITS * (size if size < 3 else 3) + 1) >> 1)) & key_mask(size)
    return x * <uint64_t>0xF1DE83E19937733Du


cdef inline KeyC key_of(const token_t* newest, Py_ssize_t size) noexcept nogil:
    """The key of the `size` tokens (0..STORED_TOKEN_MAX each) that end at `newest`."""
    cdef KeyC key
    cdef uint64_t x = 0
    cdef Py_ssize_t n = size if size < 3 else 3
    cdef Py_ssize_t i
    for i in range(n):
        x = x << TOKEN_BITS | <uint64_t>newest[i + 1 - n]
    x <<= 64 - TOKEN_BITS * n
    key.oldest = 0
    if size > 3:
        key.oldest = <uint64_t>(newest - 3)[0]
        x += (key.oldest + 1) * <uint64_t>0xA24BAED4963EE407u << 1
    key.a = _mixed(x, size)
    return key


cdef inline void key_tokens(uint64_t a, uint64_t oldest, Py_ssize_t size, token_t* out) noexcept nogil:
    """Write the tokens of a key, oldest first."""
    cdef uint64_t x = _unmixed(a & key_mask(size), size)
    cdef Py_ssize_t n = size if size < 3 else 3
    cdef Py_ssize_t i
    if size > 3:
        out[0] = <token_t>oldest
        out += 1
        x -= (oldest + 1) * <uint64_t>0xA24BAED4963EE407u << 1
    for i in range(n):
        out[i] = <token_t>(x >> (64 - TOKEN_BITS * (i + 1)) & STORED_TOKEN_MAX)


cdef inline token_t entry_follower(const EntryC* e) noexcept nogil:
    return <token_t>(e.b >> FOLLOWER_SHIFT & STORED_TOKEN_MAX)


cdef inline count_t entry_count(const EntryC* e) noexcept nogil:
    return <count_t>(e.b & ENTRY_COUNT_MAX)


cdef inline bint entry_less(const EntryC* x, const EntryC* y) noexcept nogil:
    """Order by n-gram, then follower."""
    if x.a != y.a:
        return x.a < y.a
    return x.b >> FOLLOWER_SHIFT < y.b >> FOLLOWER_SHIFT


cdef inline bint same_pair(const EntryC* x, const EntryC* y) noexcept nogil:
    """Whether n-gram and follower are equal."""
    return x.a == y.a and x.b >> FOLLOWER_SHIFT == y.b >> FOLLOWER_SHIFT


cdef inline bint same_ngram(const EntryC* x, const EntryC* y) noexcept nogil:
    return x.a == y.a and x.b >> OLDEST_SHIFT == y.b >> OLDEST_SHIFT


cdef inline EntryC entry_of(KeyC key, token_t follower, count_t count) noexcept nogil:
    return EntryC(key.a, key.oldest << OLDEST_SHIFT | <uint64_t>follower << FOLLOWER_SHIFT | <uint64_t>count)

# What can be sorted: entries, or single words whose top bits are as evenly spread.
ctypedef fused item_t:
    EntryC
    uint64_t

cdef enum:
    MAX_PART_BITS = 12    # of the upper word, by which items are scattered into parts

cdef int part_bits(Py_ssize_t n, size_t item_bytes) noexcept nogil
cdef void sort_parts(item_t* items, item_t* spare, const uint32_t* ends, int bits) noexcept nogil
cdef void sort_items(item_t* items, item_t* scratch, Py_ssize_t n) noexcept nogil
cdef Py_ssize_t sum_equal(EntryC* e, Py_ssize_t n) noexcept nogil
