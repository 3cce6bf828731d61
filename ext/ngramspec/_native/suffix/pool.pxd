# SuffixPoolC: texts of all requests in blocks, indexed by their contexts.
#
# Any number of threads read without a lock while one writes: tokens, lines and the fields of a block that
# readers use are words that are read and written whole, `len` grows only after the tokens are written,
# and a reused block gets a new `generation` first. After reading, pool_stands tells whether the tokens
# belong to one text.
from ngramspec._native.core.memory cimport Owner
from ngramspec._native.core.types cimport (
    Status, int32_t, int64_t, ngs_acquire32, ngs_fence, ngs_load32, token_t, uint16_t, uint32_t, uint8_t,
)
from ngramspec._native.suffix.index cimport LinesC

cdef enum:
    BLOCK = 256           # tokens per block
    PREFIX = 32           # tokens repeated from before a text, so that contexts can be compared in place
    CACHE_LINE = 64

cdef struct TokenBlockC:
    uint32_t generation   # of the text that it holds
    uint32_t len          # tokens held
    int32_t next          # block that continues the text, -1 = none
    int32_t prev          # block that it continues, -1 = none
    int32_t stream        # request that it was written for
    uint32_t kind         # of Kind
    uint32_t useful       # how often its tokens were right recently
    uint16_t indexed      # tokens that are found by their contexts; read and written under the lock
    uint8_t open          # a request still writes to it; also under the lock

cdef enum Kind:
    KIND_PROMPT = 0
    KIND_OUTPUT = 1

cdef struct SuffixPoolC:
    token_t* tokens       # num_blocks * BLOCK; -1 between texts
    TokenBlockC* blocks
    LinesC lines
    Py_ssize_t num_blocks
    char[CACHE_LINE] apart  # fields below are written all the time, fields above only read
    Py_ssize_t num_used   # blocks that were taken at least once
    Py_ssize_t hand       # next block that the clock hand looks at
    int64_t num_stored    # indexed tokens, those of reused blocks not counted
    int64_t num_known     # prompt tokens left out because the pool held them
    int64_t num_evicted
    int32_t streams       # requests numbered so far
    int lock              # held by the writer

# Where a request writes; block -1 = nowhere yet.
cdef struct WriterC:
    int32_t block
    int32_t stream        # 0 = none yet
    Py_ssize_t end        # end of the last write in the request's text; -1 = begin a new text


cdef inline token_t pool_token(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    return <token_t>ngs_load32(<const uint32_t*>p.tokens + position)


cdef inline uint32_t pool_generation(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil:
    """Return which text is at a position; call it before reading tokens there."""
    return ngs_acquire32(&p.blocks[position // BLOCK].generation)


cdef inline bint pool_stands(const SuffixPoolC* p, Py_ssize_t position, uint32_t generation) noexcept nogil:
    """Return whether all that was read since pool_generation belongs to one text."""
    ngs_fence()
    return ngs_load32(&p.blocks[position // BLOCK].generation) == generation


# index text[start:end] after the last write; of prompts only what the pool does not hold. Takes the lock for a
# few tokens at a time; returns where it ended: before `end` if the lock was taken and `waits` is false
cdef Py_ssize_t pool_write(SuffixPoolC* p, WriterC* w, const token_t* text, Py_ssize_t start, Py_ssize_t end,
                           Kind kind, bint waits) noexcept nogil
# the request ends; takes the lock
cdef void pool_close(SuffixPoolC* p, WriterC* w) noexcept nogil
# the next position, -1 at the end of a text
cdef Py_ssize_t pool_next(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil
# move to the next position of a text of that generation and read its token; False at its end or if it was replaced
cdef bint pool_go_on(const SuffixPoolC* p, Py_ssize_t* position, uint32_t* generation, token_t* token) noexcept nogil
# tokens before a position that can be compared, -1 when it holds no token
cdef Py_ssize_t pool_before(const SuffixPoolC* p, Py_ssize_t position) noexcept nogil
cdef void pool_praise(SuffixPoolC* p, Py_ssize_t position) noexcept nogil

cdef class SuffixPool(Owner):
    cdef SuffixPoolC c
    cdef object __weakref__
