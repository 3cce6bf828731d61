# SuffixIndexC: texts of a corpus and the positions of their contexts, read in place.
from ngramspec._native.core.types cimport token_t, uint32_t
from ngramspec._native.suffix.lines cimport LinesC

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
