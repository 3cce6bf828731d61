# MarkC: a text that is looked for in a stream of bytes.
# BudgetC: how much of its reasoning a request has left, and what ends it.
from ngramspec._native.core.types cimport int32_t, int64_t, token_t
from ngramspec._native.engine.decode cimport Sampler, SamplerC
from ngramspec._native.engine.transcript cimport Pieces

cdef struct MarkC:
    char* text
    Py_ssize_t size        # >= 1
    Py_ssize_t* back       # per length 1..size: the longest shorter prefix that ends it too
    Py_ssize_t at          # bytes matched so far, < size

# Where the request is.
cdef enum Stage:
    OUTSIDE = 0            # looks for the open mark
    INSIDE = 1             # counts tokens, and looks for the close marks
    UNFINISHED = 2         # none are left, but the last character is not complete, or no end is allowed
    ENDING = 3             # the end is forced

cdef struct BudgetC:
    SamplerC* inner        # of which `fits` tells whether a grammar allows the end
    const char* pieces     # of all tokens
    const int64_t* starts
    Py_ssize_t num_tokens  # of the vocabulary
    MarkC* marks           # the open mark, then the close marks
    Py_ssize_t num_marks
    int stage
    bint unasked           # the text begins within reasoning, and whether that may end is not asked yet
    Py_ssize_t budget      # tokens of a reasoning, >= 0
    Py_ssize_t left        # tokens until its end is forced; UNFINISHED: until it is forced anyway
    int missing            # bytes that the last character lacks
    token_t* end           # what is forced
    int32_t* fits          # end_len places for the answer of inner.fits
    Py_ssize_t end_len     # >= 1
    Py_ssize_t forced      # tokens of `end` that are emitted

cdef class ReasoningSampler(Sampler):
    cdef BudgetC b
    cdef Sampler _inner
    cdef Pieces _pieces
