"""Lines: a hash of a context leads to one cache line with the latest positions of such contexts.

A token is entered once per order, a context of 1, 2, 3, 6 and 16 tokens. There are no keys: a word
holds a position and a few bits of the hash, and whoever looks it up compares the tokens there. So
a position that has been cut off or written over needs no removal. A context keeps at most SAME
positions, and what does not fit a line is forgotten, oldest first.
"""

from libc.stdlib cimport free
from libc.string cimport memset

from ngramspec._types cimport STATUS_NO_MEMORY, STATUS_OK, ngs_load32, ngs_prefetch_read, ngs_zeroed

cdef extern from "ngs_suffix.h" nogil:
    enum:
        NGS_LINE
    uint32_t* ngs_line(uint32_t* cells, uint64_t num_lines, hash_t h)
    void ngs_lines_push(uint32_t* cells, uint64_t num_lines, const hash_t* hashes, int num, uint32_t position,
                        uint32_t mask, int most)
    void ngs_lines_push_avx2(uint32_t* cells, uint64_t num_lines, const hash_t* hashes, int num, uint32_t position,
                             uint32_t mask, int most)
    int ngs_has_avx2()
    uint32_t ngs_line_hits(const uint32_t* line, uint32_t word, uint32_t mask)
    int ngs_lowest(uint32_t bits)

cdef enum:
    LINE_BYTES = 64
    FILL = 12             # words of a line that are expected to be in use

cdef int[5] SIZES = [1, 2, 3, 6, 16]
cdef bint HAS_AVX2 = ngs_has_avx2()


cdef int order_size(int order) noexcept nogil:
    """Return the number of tokens in the contexts of an order."""
    return SIZES[order]


cdef Status lines_make(LinesC* lines, Py_ssize_t num_tokens) noexcept nogil:
    """Make empty lines with room for the contexts of num_tokens tokens, in place of those held."""
    cdef uint64_t num_lines = <uint64_t>num_tokens * NUM_ORDERS // FILL + 1
    cdef char* memory = <char*>ngs_zeroed((num_lines + 1) * LINE_BYTES)
    if memory == NULL:
        return STATUS_NO_MEMORY
    free(lines.memory)
    lines.memory = memory
    lines.cells = <uint32_t*>(memory + (LINE_BYTES - <size_t>memory % LINE_BYTES) % LINE_BYTES)
    lines.num_lines = num_lines
    lines.capacity = num_tokens
    lines.tag_mask = TAG_MASK
    return STATUS_OK


cdef void lines_clear(LinesC* lines) noexcept nogil:
    memset(lines.cells, 0, lines_nbytes(lines))


cdef void lines_free(LinesC* lines) noexcept nogil:
    free(lines.memory)
    lines.memory = NULL
    lines.cells = NULL
    lines.num_lines = 0
    lines.capacity = 0


cdef size_t lines_nbytes(const LinesC* lines) noexcept nogil:
    return lines.num_lines * NGS_LINE * sizeof(uint32_t)


cdef inline hash_t _mixed(hash_t h) noexcept nogil:
    h ^= h >> 32
    h *= <hash_t>0x9E3779B97F4A7C15u
    return h ^ (h >> 29)


cdef int context_hashes(const token_t* end, Py_ssize_t length, hash_t* out) noexcept nogil:
    cdef hash_t h = 0
    cdef hash_t power = 1
    cdef int order = 0
    cdef Py_ssize_t size = length if length < LONGEST else LONGEST
    cdef Py_ssize_t i
    for i in range(1, size + 1):
        h += (<hash_t><uint32_t>end[-i] + 1) * power
        power *= <hash_t>6364136223846793005u
        if i == SIZES[order]:
            out[order] = _mixed(h + <hash_t>order)
            order += 1
    return order


cdef inline uint32_t _tag(const LinesC* lines, hash_t h) noexcept nogil:
    return <uint32_t>h & lines.tag_mask


cdef void lines_prefetch(const LinesC* lines, const hash_t* hashes, int num) noexcept nogil:
    cdef int i
    for i in range(num):
        ngs_prefetch_read(ngs_line(lines.cells, lines.num_lines, hashes[i]))


cdef void lines_insert(LinesC* lines, const hash_t* hashes, int num, Py_ssize_t position) noexcept nogil:
    if HAS_AVX2:
        ngs_lines_push_avx2(lines.cells, lines.num_lines, hashes, num, <uint32_t>(position + 1), lines.tag_mask, SAME)
    else:
        ngs_lines_push(lines.cells, lines.num_lines, hashes, num, <uint32_t>(position + 1), lines.tag_mask, SAME)


cdef int lines_find(const LinesC* lines, hash_t h, uint32_t* positions) noexcept nogil:
    cdef const uint32_t* line = ngs_line(lines.cells, lines.num_lines, h)
    cdef uint32_t tag = _tag(lines, h)
    cdef uint32_t hits = ngs_line_hits(line, tag, lines.tag_mask)
    cdef uint32_t word
    cdef int found = 0
    while hits and found < SAME:
        word = ngs_load32(line + ngs_lowest(hits))
        hits &= hits - 1
        if word != 0 and (word & lines.tag_mask) == tag:  # another thread may have written since
            positions[found] = (word & ~lines.tag_mask) - 1
            found += 1
    return found
