"""Token ids at the start of a draft that have a flag."""

from libc.stdint cimport uint8_t

from ngramspec._native.core.arguments cimport TokensC, tokens_release, tokens_view


def leading_flagged(token_ids, const uint8_t[::1] flags not None, uint8_t flag):
    """Return how many tokens at the start of a draft have the flag.

    Args:
        token_ids: int32, shape (n,), ids >= 0.
        flags: One byte per token id, C-contiguous. An id beyond its end has no flag.
        flag: The byte to look for.

    Raises:
        InputError: token_ids is not a 1-D int32 array with ids >= 0.

    Cost: O(n). Threads: safe.
    """
    cdef TokensC tokens
    cdef Py_ssize_t i = 0
    tokens_view(token_ids, "token_ids", &tokens)
    while i < tokens.len and tokens.data[i] < flags.shape[0] and flags[tokens.data[i]] == flag:
        i += 1
    tokens_release(&tokens)
    return i
