"""Lines: the hash of a context selects one cache line with the latest positions of its contexts.

A token is entered once per order: after its context of 1, 2, 3, 6 and 16 tokens. There are no keys: a
word holds a position and a few bits of the hash, and the reader compares the tokens there. So a
position that was cut off or overwritten needs no removal. A context keeps at most SAME positions;
what does not fit a line is dropped, oldest first.

SuffixIndex: texts of a corpus and their lines, read in place, for example from a mapped file. Texts are stored one after
the other with -1 between them. A lookup stays within both whatever they hold: in a damaged file it can miss or misjudge
a context, no more.
"""

cimport cython
from libc.string cimport memset

from ngramspec._native.core.types cimport (
    STATUS_NO_MEMORY, STATUS_OK, ngs_load32, ngs_prefetch_read, ngs_release, ngs_release_later, ngs_release_some,
    ngs_take, ngs_touch,
)

from ngramspec.errors import InputError

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
    AHEAD = 8             # tokens whose lines are fetched before they are written
    TOUCH = 16384         # bytes of new lines that are faulted in per new token
    PACE = 32             # tokens entered in new lines per new token
    LAG = 256             # newest tokens, entered last: they may be rolled back
    EARLY = 20            # new lines are begun when 1 / EARLY of the room is left
    LEAST_BITS = 25
    MOST_BITS = 29

cdef int[5] SIZES = [1, 2, 3, 6, 16]
cdef hash_t[LONGEST] POWERS  # of the multiplier, by age of the token
cdef bint HAS_AVX2 = ngs_has_avx2()
cdef int _age

POWERS[0] = 1
for _age in range(1, LONGEST):
    POWERS[_age] = POWERS[_age - 1] * <hash_t>6364136223846793005u


cdef int order_size(int order) noexcept nogil:
    """Return the number of tokens in the contexts of an order."""
    return SIZES[order]


cdef inline size_t _bytes(uint64_t num_lines) noexcept nogil:
    """Return the bytes of memory that hold this many whole cache lines."""
    return (num_lines + 1) * LINE_BYTES


cdef Status lines_make(LinesC* lines, Py_ssize_t num_tokens, bint at_once) noexcept nogil:
    cdef uint64_t num_lines = <uint64_t>num_tokens * NUM_ORDERS // FILL + 1
    cdef char* memory = <char*>ngs_take(_bytes(num_lines), at_once)
    if memory == NULL:
        return STATUS_NO_MEMORY
    lines.memory = memory
    lines.cells = <uint32_t*>(memory + (LINE_BYTES - <size_t>memory % LINE_BYTES) % LINE_BYTES)
    lines.num_lines = num_lines
    lines.capacity = num_tokens
    lines.tag_mask = TAG_MASK
    return STATUS_OK


cdef void lines_free(LinesC* lines) noexcept nogil:
    ngs_release(lines.memory, _bytes(lines.num_lines))
    memset(lines, 0, sizeof(LinesC))


cdef void lines_enter(LinesC* lines, const token_t* text, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Enter text[start:end]; each line is fetched AHEAD tokens before it is written."""
    cdef hash_t[AHEAD][NUM_ORDERS] hashes
    cdef int[AHEAD] num
    cdef Py_ssize_t i, k
    for i in range(start, end + AHEAD - 1):
        if i < end:
            num[i % AHEAD] = context_hashes(text + i, i, hashes[i % AHEAD])
            lines_prefetch(lines, hashes[i % AHEAD], num[i % AHEAD])
        k = i - AHEAD + 1
        if k >= start:
            lines_insert(lines, hashes[k % AHEAD], num[k % AHEAD], k)


cdef void lines_fetch(const LinesC* lines, const token_t* text, Py_ssize_t start, Py_ssize_t length) noexcept nogil:
    cdef hash_t[NUM_ORDERS] hashes
    cdef Py_ssize_t i
    for i in range(start, min(length, lines.capacity, start + AHEAD)):
        lines_prefetch(lines, hashes, context_hashes(text + i, i, hashes))


cdef void _step(NextLinesC* next, const token_t* text, Py_ssize_t length, Py_ssize_t extra) noexcept nogil:
    """Fault in some pages of the next lines or, once all are there, enter some of the text."""
    cdef size_t num_bytes = _bytes(next.lines.num_lines)
    cdef size_t touched = min(num_bytes - next.num_touched, <size_t>extra * TOUCH)
    cdef Py_ssize_t end = min(length - LAG, next.num_entered + extra * PACE)
    if touched:
        ngs_touch(<char*>next.lines.memory + next.num_touched, touched)
        next.num_touched += touched
    elif next.num_entered < end:
        lines_enter(&next.lines, text, next.num_entered, end)
        next.num_entered = end


cdef Status _make_next(NextLinesC* next, Py_ssize_t num_tokens, bint at_once) noexcept nogil:
    cdef LinesC lines
    if lines_make(&lines, num_tokens, at_once) != STATUS_OK:
        return STATUS_NO_MEMORY
    lines_free(&next.lines)
    next.lines = lines
    next.num_touched = _bytes(lines.num_lines) if at_once else 0
    next.num_entered = 0
    return STATUS_OK


cdef Status lines_reserve(const LinesC* lines, NextLinesC* next, const token_t* text, Py_ssize_t length,
                          Py_ssize_t extra) noexcept nogil:
    cdef Py_ssize_t needed = length + extra
    cdef Py_ssize_t larger = lines.capacity + (lines.capacity >> 1)
    ngs_release_some(&next.rest)
    if next.lines.capacity == 0 and lines.capacity - lines.capacity // EARLY < needed <= lines.capacity:
        _make_next(next, larger, False)  # without memory, it is tried again when they are needed
    if next.lines.capacity:
        _step(next, text, length, extra)
    if needed <= lines.capacity or needed <= next.lines.capacity:
        return STATUS_OK
    if needed > larger:
        larger = max(needed + (needed >> 1), next.first_room)
    return _make_next(next, larger, True)


cdef void lines_extend(LinesC* lines, NextLinesC* next, const token_t* text, Py_ssize_t start,
                       Py_ssize_t length) noexcept nogil:
    if length <= lines.capacity:
        lines_enter(lines, text, start, length)
        return
    lines_enter(&next.lines, text, next.num_entered, length)
    if lines.capacity:
        ngs_release_later(&next.rest, lines.memory, _bytes(lines.num_lines))
    lines[0] = next.lines
    memset(&next.lines, 0, sizeof(LinesC))


cdef void lines_rewind(LinesC* lines, NextLinesC* next, Py_ssize_t length) noexcept nogil:
    if next.lines.capacity and length < next.num_entered:  # kept: callers rely on the reserved room
        memset(next.lines.memory, 0, next.num_touched)
        next.num_entered = 0
    if length == 0:
        memset(lines.cells, 0, lines_nbytes(lines))


cdef size_t lines_nbytes(const LinesC* lines) noexcept nogil:
    return lines.num_lines * NGS_LINE * sizeof(uint32_t)


cdef inline hash_t _mixed(hash_t h) noexcept nogil:
    h ^= h >> 32
    h *= <hash_t>0x9E3779B97F4A7C15u
    return h ^ (h >> 29)


cdef int context_hashes(const token_t* end, Py_ssize_t length, hash_t* out) noexcept nogil:
    cdef hash_t h = 0
    cdef Py_ssize_t i = 0
    cdef int order
    for order in range(NUM_ORDERS):
        if length < SIZES[order]:
            return order
        while i < SIZES[order]:
            h += (<hash_t><uint32_t>end[-1 - i] + 1) * POWERS[i]
            i += 1
        out[order] = _mixed(h + <hash_t>order)
    return NUM_ORDERS


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
    cdef int count = 0
    while hits and count < SAME:
        word = ngs_load32(line + ngs_lowest(hits))
        hits &= hits - 1
        if word != 0 and (word & lines.tag_mask) == tag:  # another thread may have written since
            positions[count] = (word & ~lines.tag_mask) - 1
            count += 1
    return count


cdef token_t index_token(const SuffixIndexC* x, Py_ssize_t position) noexcept nogil:
    cdef token_t token
    if position < 0 or position >= x.num_tokens:
        return -1
    token = x.tokens[position]
    return token if <uint32_t>token < x.vocab_size else -1


cdef Py_ssize_t index_next(const SuffixIndexC* x, Py_ssize_t position) noexcept nogil:
    return position + 1 if index_token(x, position + 1) >= 0 else -1


@cython.final
cdef class SuffixIndex:
    """SuffixIndex(tokens, lines, position_bits, vocab_size, name="", fingerprint=None, num_texts=0): a static index.

    Shared by any number of drafters, slots and threads; it never changes.

    Args:
        tokens: int32, shape (n,), C-contiguous, n < 2**position_bits - 1: texts with -1 between. Viewed:
            it stays alive and cannot be resized.
        lines: uint32, shape (m, 16), C-contiguous, m >= 1: as SuffixImage makes them. Viewed too.
        position_bits: Lower bits of a word that hold a position, 25..29.
        vocab_size: Bound of the token ids, 1..2**31 - 1.
        name: The file's name, for messages.
        fingerprint: The tokenizer's, 16 bytes; None = unknown.
        num_texts: How many texts the file states; not checked.

    Raises:
        InputError: A value is out of its bounds, or an array has another shape or dtype.

    Cost: O(1). Thread-safety: any number of threads.
    """

    def __cinit__(self, tokens, lines, int position_bits, long long vocab_size, str name="", fingerprint=None,
                  Py_ssize_t num_texts=0):
        cdef const token_t[::1] text
        cdef const uint32_t[:, ::1] cells
        try:
            text, cells = tokens, lines
        except (ValueError, TypeError, BufferError) as error:
            raise InputError(f"tokens must be int32 of shape (n,), lines uint32 of shape (m, 16): {error}") from None
        if not LEAST_BITS <= position_bits <= MOST_BITS or not 1 <= vocab_size <= 0x7FFFFFFF:
            raise InputError(f"position_bits must be in {LEAST_BITS}..{MOST_BITS} and vocab_size in 1..2**31 - 1, "
                             f"got {position_bits} and {vocab_size}")
        if cells.shape[0] < 1 or cells.shape[1] != LINE_WORDS or not 1 <= text.shape[0] < (1 << position_bits) - 1:
            raise InputError(f"expected lines of {LINE_WORDS} words and 1..{(1 << position_bits) - 2} tokens, got "
                             f"shape {tuple(lines.shape)} and {text.shape[0]}")
        self._tokens, self._lines = text, cells
        self.c.tokens = &text[0]
        self.c.num_tokens = text.shape[0]
        self.c.vocab_size = <uint32_t>vocab_size
        self.c.lines.cells = <uint32_t*>&cells[0, 0]
        self.c.lines.num_lines = cells.shape[0]
        self.c.lines.tag_mask = ~(<uint32_t>0) << position_bits
        self.name = name
        self.fingerprint = fingerprint
        self.num_texts = num_texts
        self.num_tokens = text.shape[0] - num_texts

    @property
    def vocab_size(self):
        """Return the bound of the token ids."""
        return self.c.vocab_size

    @property
    def nbytes(self):
        """Return the bytes of tokens and lines; all users of a mapped file share them."""
        return <size_t>self.c.num_tokens * sizeof(token_t) + self.c.lines.num_lines * LINE_WORDS * sizeof(uint32_t)

    def __repr__(self):
        return f"SuffixIndex({self.name!r}, num_tokens={self.num_tokens})"
