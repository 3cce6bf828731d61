# Pieces: the text of every token of a vocabulary, in one block.
# TranscriptC: what one request has emitted: tokens, and their text up to a stop text.
cimport cython

from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport Status, int64_t, token_t, uint8_t

cdef class Pieces(Owner):
    cdef char* text           # UTF-8, one token after the other
    cdef int64_t* starts      # num_tokens + 1 offsets in text, ascending
    cdef uint8_t* ends        # 1 = the token ends a generation
    cdef readonly Py_ssize_t num_tokens

# Why an answer ends.
cdef enum Ending:
    ENDING_NONE = 0
    ENDING_TOKEN = 1       # an end token
    ENDING_STOP = 2        # a stop text
    ENDING_FULL = 3        # max_tokens reached, or the context is full
    ENDING_IMPOSSIBLE = 4  # no token is possible

cdef struct TranscriptC:
    token_t* tokens        # `len` of `room`
    uint8_t* accepted      # per token: a draft had guessed it
    int64_t* text_ends     # per token: bytes of text up to and including it
    Py_ssize_t len
    Py_ssize_t room
    Py_ssize_t max_tokens  # >= 0
    char* text             # UTF-8, cut before the stop text that was found
    int64_t text_len
    int64_t text_room
    int64_t taken          # bytes that were handed out; whole characters
    int64_t longest_stop   # bytes, 0 = there are no stop texts
    Py_ssize_t stop        # index of the stop text that was found, -1 = none
    int64_t min_indent     # white space that each line after the first begins with; 0 = any
    int64_t line           # where the newest line begins whose indent is not known yet, -1 = none

# A stretch of text whose tokens were all drafted, or all not.
cdef struct SpanC:
    int64_t end            # bytes of text before what follows it
    bint accepted

cdef class Transcript:
    cdef TranscriptC c
    cdef Pieces _pieces
    cdef tuple _stops           # bytes
    cdef cython.pymutex _lock   # guards c; no Python code runs while it is held
    cdef int add_tokens(self, const token_t* tokens, Py_ssize_t n, Py_ssize_t num_accepted) except -1
    cdef int64_t _size(self, token_t token) noexcept nogil
    cdef int _add(self, token_t token, bint accepted)
    cdef bint _find_stop(self, int64_t before)
    cdef bint _check_indent(self, int64_t before) noexcept
    cdef int64_t _open(self)
    cdef Py_ssize_t _spans(self, Py_ssize_t first, int64_t start, int64_t end, SpanC* out) noexcept
