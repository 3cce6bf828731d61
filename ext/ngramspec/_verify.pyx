"""verify: sample and match, the lossless check of a draft against the target's own choices."""

from ngramspec._arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._rows cimport Rows
from ngramspec._sampler cimport Sampler, SamplerC
from ngramspec._types cimport token_t

from ngramspec.errors import InputError


cdef Py_ssize_t verify_rows(const float* row, Py_ssize_t vocab_size, const token_t* draft, Py_ssize_t draft_len,
                            SamplerC* sampler, token_t* out) noexcept nogil:
    """Write the emitted tokens, return their number, or -1 minus it when no token was possible."""
    cdef Py_ssize_t i
    cdef token_t token
    for i in range(draft_len + 1):
        token = sampler.choose(sampler.state, row + i * vocab_size, vocab_size)
        if token < 0:
            return -1 - i
        sampler.accept(sampler.state, token)
        out[i] = token
        if i < draft_len and token != draft[i]:
            return i + 1
    return draft_len + 1


def verify(Rows rows not None, Py_ssize_t first_row, draft, Sampler sampler not None, token_t[::1] out not None):
    """Choose tokens row by row for as long as the draft guessed them.

    Row first_row follows the token before the draft, the next ones its tokens. Each token is
    chosen from its own row by the complete sampler and committed to it; the draft only decides
    whether the next row is valid. So the text is the same whatever the draft was.

    Args:
        rows: Logits of the decode.
        first_row: Row of the token before the draft; rows up to first_row + len(draft) are read.
        draft: int32, shape (k,), k >= 0.
        sampler: Of the request; advanced by every returned token.
        out: int32, shape (>= k + 1,). Receives the tokens.

    Returns:
        int: Number of tokens n. 1 <= n <= k + 1, and n - 1 of them are accepted draft tokens; or
        -1 - n when after n tokens no token was possible, such as at the end of a grammar.

    Raises:
        InputError: A row is missing or out is too short. Nothing is changed then.

    Cost: n samplings. Threads: releases the GIL where there is much to read.
    Source: llama.cpp common/sampling.cpp, sample and accept in turn.
    """
    cdef TokensC guess
    cdef const float* row = rows.row(first_row)
    cdef Py_ssize_t made = 0
    tokens_view(draft, "draft", &guess)
    try:
        if first_row + guess.len >= rows.c.num_rows or out.shape[0] < guess.len + 1:
            raise InputError(f"a draft of {guess.len} tokens needs as many rows after {first_row} of "
                             f"{rows.c.num_rows} and {guess.len + 1} places in out, which has {out.shape[0]}")
        if (guess.len + 1) * rows.c.vocab_size < MUCH_TO_READ:
            made = verify_rows(row, rows.c.vocab_size, guess.data, guess.len, &sampler.c, &out[0])
        else:
            with nogil:
                made = verify_rows(row, rows.c.vocab_size, guess.data, guess.len, &sampler.c, &out[0])
    finally:
        tokens_release(&guess)
    return made
