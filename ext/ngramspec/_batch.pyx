"""Batch: the tokens of one decode, for many sequences, with logits only where they are needed."""

cimport cython
from libc.stdlib cimport free, malloc

from ngramspec._arguments cimport TokensC, tokens_release, tokens_view

import numpy as np

from ngramspec.errors import CapacityError, InputError


@cython.final
cdef class Batch:
    """Batch(capacity): tokens, positions, sequences and output flags of one decode.

    Args:
        capacity: Most tokens, >= 1.

    Raises:
        InputError: capacity < 1.
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t capacity):
        if capacity < 1:
            raise InputError(f"capacity must be >= 1, got {capacity}")
        self.capacity = capacity
        self.tokens = <token_t*>malloc(<size_t>capacity * sizeof(token_t))
        self.positions = <int32_t*>malloc(<size_t>capacity * sizeof(int32_t))
        self.sequences = <int32_t*>malloc(<size_t>capacity * sizeof(int32_t))
        self.outputs = <int8_t*>malloc(<size_t>capacity)
        if not (self.tokens and self.positions and self.sequences and self.outputs):
            raise MemoryError(f"no memory for a batch of {capacity} tokens")

    def __dealloc__(self):
        free(self.tokens)
        free(self.positions)
        free(self.sequences)
        free(self.outputs)

    def __len__(self):
        return self.len

    def clear(self):
        """Remove all tokens."""
        self.len = 0
        self.num_outputs = 0

    def add(self, int32_t sequence, Py_ssize_t position, token_ids, draft=None, bint output=True):
        """Add the next tokens of a sequence and the draft that is to be verified after them.

        Args:
            sequence: Sequence id, >= 0.
            position: Place of the first token in its sequence, >= 0.
            token_ids: int32, shape (n,), n >= 1. Copied.
            draft: int32, shape (k,), or None. Needs output.
            output: Whether the logits of the last of token_ids, and of all of draft, are wanted.

        Returns:
            int: Row of the first logits among this batch's outputs, -1 without output.

        Raises:
            InputError: An argument is not as described. Nothing is added then.
            CapacityError: The tokens do not fit. Nothing is added then.
        """
        cdef TokensC first, guess
        cdef Py_ssize_t i, row = self.num_outputs if output else -1
        cdef bint viewed = False
        if sequence < 0 or position < 0 or (draft is not None and not output):
            raise InputError(f"sequence {sequence} and position {position} must be >= 0, a draft needs output")
        tokens_view(token_ids, "token_ids", &first)
        guess.len = 0
        try:
            if draft is not None:
                tokens_view(draft, "draft", &guess)
                viewed = True
            if first.len == 0:
                raise InputError("token_ids must hold at least one token")
            if self.len + first.len + guess.len > self.capacity:
                raise CapacityError(f"{first.len} + {guess.len} tokens do not fit behind {self.len} of {self.capacity}")
            for i in range(first.len):
                self.put(first.data[i], position + i, sequence, output and i == first.len - 1)
            for i in range(guess.len):
                self.put(guess.data[i], position + first.len + i, sequence, True)
        finally:
            tokens_release(&first)
            if viewed:
                tokens_release(&guess)
        return row

    def arrays(self):
        """Return copies of tokens, positions, sequences (int32) and output flags (bool)."""
        cdef Py_ssize_t n = self.len
        if n == 0:
            return tuple(np.empty(0, dtype) for dtype in (np.int32, np.int32, np.int32, np.bool_))
        return (np.array(<token_t[:n]>self.tokens), np.array(<int32_t[:n]>self.positions),
                np.array(<int32_t[:n]>self.sequences), np.array(<int8_t[:n]>self.outputs).astype(np.bool_))

    cdef void put(self, token_t token, Py_ssize_t position, int32_t sequence, bint output) noexcept nogil:
        self.tokens[self.len] = token
        self.positions[self.len] = <int32_t>position
        self.sequences[self.len] = sequence
        self.outputs[self.len] = output
        self.num_outputs += output
        self.len += 1
