# SuffixPoolC: texts of all requests in blocks, indexed by their contexts.
from ngramspec._lines cimport LinesC
from ngramspec._types cimport Status, int32_t, int64_t, token_t, uint8_t, uint16_t, uint32_t

cdef enum:
    BLOCK = 256           # tokens per block
    PREFIX = 32           # tokens repeated from before a text, so that contexts can be compared in place

cdef struct BlockC:
    int32_t next          # block in which the text goes on, -1 = none
    int32_t prev          # block that it goes on from, -1 = none
    int32_t stream        # request that it was written for
    uint16_t len          # tokens held
    uint16_t indexed      # of these, tokens that are found by their contexts
    uint8_t useful        # how often its tokens were right, lately
    uint8_t kind          # of Kind
    uint8_t open          # a request still writes to it

cdef enum Kind:
    KIND_PROMPT = 0
    KIND_OUTPUT = 1

cdef struct SuffixPoolC:
    token_t* tokens       # num_blocks * BLOCK; -1 between texts
    BlockC* blocks
    LinesC lines
    Py_ssize_t num_blocks
    Py_ssize_t num_used   # blocks that were taken at least once
    Py_ssize_t hand       # next block that the clock hand looks at
    int64_t num_stored    # indexed tokens, those of reused blocks not counted
    int64_t num_known     # tokens left out, as the pool held them already
    int64_t num_evicted
    int32_t streams       # requests numbered so far
    int lock

# Where a request writes; block -1 = nowhere yet.
cdef struct WriterC:
    int32_t block
    int32_t stream
    Py_ssize_t end        # of what was written last, in the request's text; -1 = begin anew

cdef void pool_write(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Py_ssize_t end,
                     Kind kind) noexcept nogil
cdef void pool_close(SuffixPoolC* p, WriterC* w) noexcept nogil
# the position after one, -1 at the end of a text
cdef Py_ssize_t pool_next(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil
# tokens before a position that can be compared, -1 when it holds no token
cdef Py_ssize_t pool_before(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil
cdef void pool_praise(SuffixPoolC* p, Py_ssize_t position) noexcept nogil

cdef class SuffixPool:
    cdef SuffixPoolC c
    cdef object __weakref__
