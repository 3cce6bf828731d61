"""Sampler: how one request chooses a token from a row of logits; GreedySampler takes the likeliest."""

cimport cython

from ngramspec._rows cimport Rows, row_argmax


cdef token_t _nothing(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    return -1


cdef void _ignore(void* state, token_t token) noexcept nogil:
    pass


cdef token_t _greedy_choose(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    return row_argmax(row, vocab_size)


cdef class Sampler:
    """Base of the samplers, finds no token possible. One request owns it; not to be shared between threads."""

    def __cinit__(self):
        self.c.choose = _nothing
        self.c.accept = _ignore

    def choose(self, Rows rows not None, Py_ssize_t index):
        """Return the token chosen from a row, -1 when none is possible; commits nothing.

        Raises:
            InputError: No such row.
        """
        return self.c.choose(self.c.state, rows.row(index), rows.c.vocab_size)

    def accept(self, token_t token):
        """Commit an emitted token: penalties and grammar advance."""
        self.c.accept(self.c.state, token)

    def accept_prompt(self, token_ids):
        """Let the sampler look back on the prompt, before the first choice; here it does nothing.

        Args:
            token_ids: int32, shape (n,).
        """

    def accept_prompt(self, token_ids):
        """Show the prompt to penalties that look back on it; a grammar does not advance."""


@cython.final
cdef class GreedySampler(Sampler):
    """GreedySampler(): the likeliest token, the smallest id among equals; stateless."""

    def __cinit__(self):
        self.c.choose = _greedy_choose
