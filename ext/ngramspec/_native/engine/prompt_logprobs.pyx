"""PromptLogprobs: how likely each token of a prompt was to the target, from the rows of its passes.

A pass's rows are read before the next one and not kept: of each stay a number and the likeliest tokens.
"""

cimport cython

from ngramspec._native.engine.decode cimport likeliest_of, log_share, log_sum_of, rank_of

from ngramspec.errors import InputError


@cython.final
cdef class PromptLogprobs(Owner):
    """PromptLogprobs(size, top): log-probabilities of the tokens of a prompt, added in their order.

    Args:
        size: Tokens of the prompt but the first, which nothing comes before, >= 0.
        top: Likeliest tokens to keep for each, >= 0.

    Raises:
        InputError: A value is out of its bounds.
        MemoryError: No room for size * (8 + 8 * top) bytes.

    Thread-safety: one thread writes; others may read what `len` covers.
    """

    def __cinit__(self, Py_ssize_t size, Py_ssize_t top):
        if size < 0 or top < 0:
            raise InputError(f"size and top must be >= 0, got {size} and {top}")
        self.size, self.top = size, top
        self.logprobs = <float*>self.take(size, sizeof(float))
        self.ranks = <int32_t*>self.take(size, sizeof(int32_t))
        self.likeliest = <token_t*>self.take(size * top, sizeof(token_t))
        self.likely = <float*>self.take(size * top, sizeof(float))

    def __len__(self):
        """Return how many are known."""
        return self.len

    def at(self, Py_ssize_t index):
        """Return what is known of the token after prompt token `index`.

        Args:
            index: 0 <= index < len.

        Returns:
            tuple: Its log-probability; its rank, 1 if no other token was likelier; a list of (token,
            log-probability) of the likeliest, likeliest first.

        Raises:
            InputError: It is not known.
        """
        cdef Py_ssize_t i, first = index * self.top
        if not 0 <= index < self.len:
            raise InputError(f"index must be in 0..{self.len - 1}, got {index}")
        top = [(self.likeliest[i], self.likely[i]) for i in range(first, first + self.top) if self.likeliest[i] >= 0]
        return self.logprobs[index], self.ranks[index], top

    cdef void add(self, const float* row, Py_ssize_t vocab_size, token_t token) noexcept nogil:
        """Add the next token, by the row of the token before it."""
        cdef float highest
        cdef double total = log_sum_of(row, vocab_size, &highest)
        cdef token_t* ids = self.likeliest + self.len * self.top
        cdef float* values = self.likely + self.len * self.top
        cdef Py_ssize_t i, count = likeliest_of(row, vocab_size, self.top, ids, values)
        for i in range(self.top):
            if i < count:
                values[i] = <float>log_share(row[ids[i]], highest, total)
            else:
                ids[i] = -1
        self.logprobs[self.len] = <float>log_share(row[token], highest, total)
        self.ranks[self.len] = rank_of(row, vocab_size, row[token])
        self.len += 1
