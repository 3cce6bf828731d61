# LinesC: hashed contexts -> the latest positions they were seen at, in lines of one cache line each.
from ngramspec._native.core.types cimport Status, hash_t, ngs_rest, token_t, uint32_t, uint64_t

cdef enum:
    NUM_ORDERS = 5        # contexts of 1, 2, 3, 6 and 16 tokens
    LONGEST = 16
    SAME = 4              # positions kept per context
    LINE_WORDS = 16
    TAG_MASK = 0xFE000000  # positions are below 2^25 - 1; the other bits of a word are the context's tag

cdef struct LinesC:
    void* memory          # owned; cells begin at its first whole cache line
    uint32_t* cells       # num_lines * 16 words; 0 = empty, else tag | position + 1
    uint64_t num_lines
    Py_ssize_t capacity   # tokens it was made for
    uint32_t tag_mask     # upper bits of a word; TAG_MASK unless the lines are a file's

# Larger lines in the making, to replace those of a growing text.
cdef struct NextLinesC:
    LinesC lines          # capacity 0 = none are being made
    size_t num_touched    # bytes of them whose pages are there
    Py_ssize_t num_entered  # tokens of the text whose contexts are in them
    Py_ssize_t first_room  # tokens that the first lines have room for
    ngs_rest rest         # replaced lines that are not yet released

cdef int order_size(int order) noexcept nogil
# empty lines with room for the contexts of num_tokens tokens; `at_once`: fault in all pages now
cdef Status lines_make(LinesC* lines, Py_ssize_t num_tokens, bint at_once) noexcept nogil
# room for `extra` tokens after text[:length]; O(extra), however long the text is
cdef Status lines_reserve(const LinesC* lines, NextLinesC* next, const token_t* text, Py_ssize_t length,
                          Py_ssize_t extra) noexcept nogil
# enter text[start:length]; the tokens before it are entered. The next lines take over once the text needs them
cdef void lines_extend(LinesC* lines, NextLinesC* next, const token_t* text, Py_ssize_t start,
                       Py_ssize_t length) noexcept nogil
# ask for the lines that text[start:length] will be entered in
cdef void lines_fetch(const LinesC* lines, const token_t* text, Py_ssize_t start, Py_ssize_t length) noexcept nogil
# the text is cut; contexts of later tokens stay in the lines and are skipped
cdef void lines_rewind(LinesC* lines, NextLinesC* next, Py_ssize_t length) noexcept nogil
cdef void lines_free(LinesC* lines) noexcept nogil
cdef size_t lines_nbytes(const LinesC* lines) noexcept nogil
# hashes of the contexts of all orders that end before `end`; returns how many orders fit `length` tokens
cdef int context_hashes(const token_t* end, Py_ssize_t length, hash_t* out) noexcept nogil
cdef void lines_prefetch(const LinesC* lines, const hash_t* hashes, int num) noexcept nogil
cdef void lines_insert(LinesC* lines, const hash_t* hashes, int num, Py_ssize_t position) noexcept nogil
# positions of a context, newest first, at most SAME; those of another context with the same tag may be among
# them. One thread may insert meanwhile
cdef int lines_find(const LinesC* lines, hash_t h, uint32_t* positions) noexcept nogil

# SuffixIndexC: texts of a corpus and the positions of their contexts, read in place.

cdef struct SuffixIndexC:
    const token_t* tokens  # -1 between texts
    Py_ssize_t num_tokens  # borders included
    uint32_t vocab_size    # token ids are below it; a larger id counts as a border
    LinesC lines           # borrowed

# the token at a position, -1 if there is none; any position is allowed
cdef token_t index_token(const SuffixIndexC* x, Py_ssize_t position) noexcept nogil
# the next position, -1 at the end of a text
cdef Py_ssize_t index_next(const SuffixIndexC* x, Py_ssize_t position) noexcept nogil

cdef class SuffixIndex:
    cdef SuffixIndexC c
    cdef readonly str name
    cdef readonly object fingerprint
    cdef readonly Py_ssize_t num_tokens
    cdef readonly Py_ssize_t num_texts
    cdef const token_t[::1] _tokens        # the pointers point into these views, which keep the arrays in place
    cdef const uint32_t[:, ::1] _lines
