# StaticC: n-grams and followers of a corpus, looked up in place in the sections of a file.
#
# A record per n-gram, ascending by key. Words of 32 bits, little-endian; docs/reference/formats.md has the table:
#   1, 2 tokens   a with bit 21 = many, bits 0..20 = best | count
#   3 tokens      a | many << 31, best | count
#   4 tokens      a | oldest token | many << 31, best | count
# many = 0: `best` is the only follower and occurred `count` times; many = 1: `count` is the place of a
# list in the followers section: number, total, count of the best, then token and count of each,
# ascending by token. The index holds, for each value of the top bits of `a`, the first such record.
from ngramspec._native.core.packing cimport KeyC
from ngramspec._native.core.types cimport NGRAM_MAX, count_t, token_t, uint32_t, uint64_t

cdef enum:
    LIST_HEAD = 3
    MANY_SHIFT = 31
    SHORT_MANY_SHIFT = 21

cdef struct SectionsC:
    const uint32_t* records
    Py_ssize_t num_ngrams
    const uint32_t* followers
    Py_ssize_t followers_len   # words
    const uint32_t* index
    int index_shift            # a >> index_shift is the place in the index; 64: one bucket

cdef struct StaticC:
    SectionsC[NGRAM_MAX + 1] sizes  # by n-gram size; [0] is not used
    Py_ssize_t ngram_min
    Py_ssize_t ngram_max
    token_t vocab_size         # every token id is below it; one that is not counts as unknown

# The followers of one n-gram. Borrowed from the sections.
cdef struct FollowersC:
    token_t best
    count_t best_count
    count_t total
    const uint32_t* pairs      # token, count; NULL while `best` is the only one
    Py_ssize_t num


cdef inline Py_ssize_t record_words(Py_ssize_t size) noexcept nogil:
    return 3 if size < 3 else size + 1


cdef inline uint64_t record_a(const uint32_t* r) noexcept nogil:
    return <uint64_t>r[1] << 32 | r[0]


cdef void static_prefetch(const StaticC* c, const token_t* newest, Py_ssize_t size) noexcept nogil
cdef bint static_find(const StaticC* c, const token_t* newest, Py_ssize_t size, FollowersC* out) noexcept nogil
cdef count_t followers_count(const FollowersC* f, token_t token) noexcept nogil

cdef class StaticCache:
    cdef StaticC c
    cdef readonly str name
    cdef readonly object fingerprint
    cdef list _held            # the views that the pointers point into
    cdef readonly dict offsets

    cdef int _take_sections(self, Py_ssize_t size, object records, object followers, object index) except -1
