"""Constraint: what one text must follow, token by token, whatever reads its grammar."""

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.core.types cimport int32_t, token_t, uint64_t

import numpy as np

from ngramspec.errors import InputError


cdef bint _refuses(void* state, token_t token) noexcept nogil:
    return False


cdef const uint64_t* _no_mask(void* state) noexcept nogil:
    return NULL


cdef void _fit_none(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n,
                    int32_t* fits) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        fits[i] = 0


cdef Py_ssize_t _force_none(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    return 0


cdef class Constraint(Owner):
    """Base class of what follows one text in a grammar. It allows nothing itself.

    A token is allowed if its text can go on from where the text is, in whole characters or in the
    middle of one, or if a rule asks for the token itself. A token that ends a generation is allowed
    where the grammar may end.

    One thread at a time may use it.
    """

    def __cinit__(self, *args, **options):
        self.c.allows = self.c.accept = _refuses
        self.c.mask = _no_mask
        self.c.fits = _fit_none
        self.c.forced = _force_none

    def __len__(self):
        """Return the tokens of the vocabulary."""
        return self.c.vocab_size

    @property
    def problem(self):
        """Return why it goes no further, "" without a problem."""
        return ""

    @property
    def may_end(self):
        """Return whether the grammar may end here."""
        return False

    def allows(self, Py_ssize_t token):
        """Return whether a token may come next.

        Raises:
            InputError: No such token.

        Cost: some steps per byte of its text.
        """
        self._check(token)
        return self.c.allows(self.c.state, <token_t>token)

    def mask(self):
        """Return bool, shape (vocab_size,): which tokens may come next; none after a problem.

        Cost: some steps per byte of the vocabulary that fits, without the GIL; less where the text was
            in the same situation before.
        """
        cdef const uint64_t* mask
        cdef Py_ssize_t size = self.c.vocab_size
        with nogil:
            mask = self.c.mask(self.c.state)
        if mask == NULL:
            return np.zeros(size, np.bool_)
        words = np.asarray(<const uint64_t[:(size + 63) // 64]>mask)
        return np.unpackbits(words.view(np.uint8), count=size, bitorder="little").view(np.bool_)

    def accept(self, Py_ssize_t token):
        """Go on by a token; return False, and stay, if it is not allowed or after a problem.

        Raises:
            InputError: No such token.

        Cost: some steps per byte of its text.
        """
        self._check(token)
        return self.c.accept(self.c.state, <token_t>token)

    def fits(self, draft, parents=None):
        """Return bool, shape (n,): which tokens of a draft may come after those before them.

        Where that would take long to find out, a token counts as one that may. The text stays where it is.

        Args:
            draft: int32, shape (n,).
            parents: Where the draft is a tree: int32, shape (n,), the index of each token's parent, an
                earlier one, or -1 = the text.

        Raises:
            InputError: There is no such token, or parents is not as described.

        Cost: some steps per byte of its text.
        """
        cdef TokensC tokens
        cdef const int32_t[::1] above
        cdef int32_t[::1] view
        cdef Py_ssize_t i
        tokens_view(draft, "draft", &tokens)
        try:
            for i in range(tokens.len):
                self._check(tokens.data[i])
            marks = np.zeros(tokens.len, np.int32)
            if parents is not None:
                above = parents_view(parents, tokens.len)
            if tokens.len:
                view = marks
                self.c.fits(self.c.state, tokens.data, NULL if parents is None else &above[0], tokens.len, &view[0])
        finally:
            tokens_release(&tokens)
        return marks.astype(np.bool_)

    def forced(self, Py_ssize_t limit):
        """Return int32, shape (n,): tokens of text that must come next, as the vocabulary writes it.

        Other tokens may write the same text. None where nothing must come, or that is not known.

        Args:
            limit: Most tokens, >= 0.
        """
        out = np.empty(max(1, limit), np.int32)
        cdef int32_t[::1] view = out
        return out[:self.c.forced(self.c.state, &view[0], limit) if limit > 0 else 0]

    cdef int _check(self, Py_ssize_t token) except -1:
        if not 0 <= token < self.c.vocab_size:
            raise InputError(f"token must be in 0..{self.c.vocab_size - 1}, got {token}")
        return 0
