"""SuffixIndex: texts of a corpus for the suffix drafter, read in place, for example from a mapped file.

Texts are stored one after the other with -1 between them; lines (_lines) hold the positions of contexts.
A lookup stays within both whatever they hold: in a damaged file it can miss or misjudge a context, no
more.
"""

cimport cython

from ngramspec._native.suffix.lines cimport LINE_WORDS

from ngramspec.errors import InputError

cdef enum:
    LEAST_BITS = 25
    MOST_BITS = 29


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
