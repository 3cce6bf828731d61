"""Pieces: the text of every token of a vocabulary, to be appended without Python objects."""

cimport cython
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from ngramspec.errors import InputError


@cython.final
cdef class Pieces:
    """Pieces(pieces, ends=()): the UTF-8 text of every token, and which tokens end a generation.

    Args:
        pieces: One bytes object per token id; it may hold a part of a character. Copied.
        ends: Token ids, each below len(pieces).

    Raises:
        InputError: No pieces, or an end token beyond them.
        MemoryError: No room.
    """

    def __cinit__(self, pieces, ends=()):
        cdef bytes piece
        cdef Py_ssize_t i, size = 0
        self.num_tokens = len(pieces)
        if self.num_tokens < 1:
            raise InputError("pieces must hold at least one token")
        for piece in pieces:
            size += len(piece)
        self.text = <char*>malloc(<size_t>(size if size else 1))
        self.starts = <int64_t*>malloc(<size_t>(self.num_tokens + 1) * sizeof(int64_t))
        self.ends = <uint8_t*>calloc(<size_t>self.num_tokens, 1)
        if not (self.text and self.starts and self.ends):
            raise MemoryError(f"no memory for {size} bytes of text")
        size = 0
        for i in range(self.num_tokens):
            piece = pieces[i]
            self.starts[i] = size
            memcpy(self.text + size, <const char*>piece, <size_t>len(piece))
            size += len(piece)
        self.starts[self.num_tokens] = size
        for i in ends:
            if not 0 <= i < self.num_tokens:
                raise InputError(f"end tokens must be in 0..{self.num_tokens - 1}, got {i}")
            self.ends[i] = 1

    def __dealloc__(self):
        free(self.text)
        free(self.starts)
        free(self.ends)

    def __len__(self):
        return self.num_tokens
