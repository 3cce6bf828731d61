# Pieces: the text of every token of a vocabulary, in one block.
from ngramspec._types cimport int64_t, token_t, uint8_t

cdef class Pieces:
    cdef char* text           # UTF-8, one token after the other
    cdef int64_t* starts      # num_tokens + 1 offsets in text, ascending
    cdef uint8_t* ends        # 1 = the token ends a generation
    cdef readonly Py_ssize_t num_tokens
