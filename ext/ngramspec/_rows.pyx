"""Rows: the logits of one decode, read in place."""

cimport cython
from libc.math cimport exp, log

import numpy as np

from ngramspec.errors import InputError

cdef extern from "ngs_rows.h" nogil:
    float ngs_row_max(const float* row, Py_ssize_t n)
    Py_ssize_t ngs_row_find(const float* row, Py_ssize_t n, float value)


cdef token_t row_argmax(const float* row, Py_ssize_t n) noexcept nogil:
    """Return the smallest id with the largest logit, 0 when all are NaN."""
    cdef Py_ssize_t found = ngs_row_find(row, n, ngs_row_max(row, n))
    return <token_t>found if found < n else 0


cdef double log_sum(const float* row, Py_ssize_t n) noexcept nogil:
    """Return the logarithm of the sum of exp(row)."""
    cdef double top = ngs_row_max(row, n), total = 0.0
    cdef Py_ssize_t i
    for i in range(n):
        total += exp(row[i] - top)
    return top + log(total)


@cython.final
cdef class Rows:
    """Rows(vocab_size): the logits of the last decode, in the order of the batch's outputs.

    A target fills it; nothing is copied. Invalid after the target's next decode.

    Args:
        vocab_size: Logits per row, >= 1.

    Raises:
        InputError: vocab_size < 1.
    """

    def __cinit__(self, Py_ssize_t vocab_size):
        if vocab_size < 1:
            raise InputError(f"vocab_size must be >= 1, got {vocab_size}")
        self.c.vocab_size = vocab_size

    def __len__(self):
        return self.c.num_rows

    @property
    def vocab_size(self):
        """Return the number of logits per row."""
        return self.c.vocab_size

    def set(self, const float[:, ::1] logits not None):
        """Show these logits from now on.

        Args:
            logits: float32, shape (n, vocab_size), C-contiguous. Not copied, kept alive.

        Raises:
            InputError: The second dimension is not vocab_size.
        """
        if logits.shape[1] != self.c.vocab_size:
            raise InputError(f"logits must have {self.c.vocab_size} columns, got {logits.shape[1]}")
        self.c.num_rows = logits.shape[0]
        self.c.data = &logits[0, 0] if logits.shape[0] else NULL
        self._owner = logits

    def argmax(self, Py_ssize_t index):
        """Return the most likely token of a row, the smallest id among equals.

        Raises:
            InputError: No such row.

        Cost: O(vocab_size), vectorised.
        """
        return row_argmax(self.row(index), self.c.vocab_size)

    def copy(self, Py_ssize_t index):
        """Return a row as a new float32 array of shape (vocab_size,).

        Raises:
            InputError: No such row.
        """
        cdef const float[::1] view = <const float[:self.c.vocab_size]>self.row(index)
        return np.array(view)

    def logprobs(self, Py_ssize_t index, token_t token, Py_ssize_t top):
        """Return the log-probability of a token under a row's softmax, and the likeliest tokens.

        Args:
            index: The row.
            token: 0 <= token < vocab_size.
            top: How many of the likeliest tokens to return, 0..vocab_size.

        Returns:
            tuple: float, then a list of (token, log-probability), likeliest first.

        Raises:
            InputError: An argument is out of its bounds.

        Cost: O(vocab_size).
        """
        cdef const float* row = self.row(index)
        cdef double total
        if not (0 <= token < self.c.vocab_size and 0 <= top <= self.c.vocab_size):
            raise InputError(f"token and top must be below {self.c.vocab_size + 1}, got {token} and {top}")
        with nogil:
            total = log_sum(row, self.c.vocab_size)
        best = []
        if top:
            logits = np.asarray(<const float[:self.c.vocab_size]>row)
            ids = np.argpartition(logits, -top)[-top:]
            ids = ids[np.argsort(-logits[ids], kind="stable")]
            best = [(int(i), float(logits[i]) - total) for i in ids]
        return row[token] - total, best

    cdef const float* row(self, Py_ssize_t index) except NULL:
        if not 0 <= index < self.c.num_rows:
            raise InputError(f"row must be in 0..{self.c.num_rows - 1}, got {index}")
        return self.c.data + index * self.c.vocab_size
