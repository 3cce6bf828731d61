"""The lossless check of one draft: sample and match.

Each token is chosen from its own row of logits; the draft decides only which row comes next.
"""

from libc.stdlib cimport free, malloc

from ngramspec._native.core.arguments cimport TokensC, parents_view, tokens_release, tokens_view
from ngramspec._native.engine.decode cimport MUCH_TO_READ, Rows, Sampler

from ngramspec.errors import InputError


cdef Py_ssize_t next_row(const token_t* draft, const int32_t* parents, Py_ssize_t draft_len, Py_ssize_t row,
                         token_t token) noexcept nogil:
    cdef Py_ssize_t i
    if parents == NULL:
        return row + 1 if row < draft_len and draft[row] == token else -1
    for i in range(row, draft_len):  # children come after their parent
        if parents[i] == row - 1 and draft[i] == token:
            return i + 1
    return -1


cdef Py_ssize_t verify_rows(const float* logits, Py_ssize_t vocab_size, const token_t* draft, const int32_t* parents,
                            Py_ssize_t draft_len, SamplerC* sampler, token_t* out, int32_t* rows,
                            CandidateC* candidates, Py_ssize_t top) noexcept nogil:
    cdef Py_ssize_t count, row = 0, num_out = 0
    cdef token_t token
    while True:
        token = sampler.choose(sampler.state, logits + row * vocab_size, vocab_size)
        if token < 0:
            return -1 - num_out
        if top >= 0:
            count = sampler.candidates(sampler.state, token, candidates, top)
            if count <= top:
                candidates[count].token = -1
            candidates += top + 1
        sampler.accept(sampler.state, token)
        out[num_out] = token
        rows[num_out] = <int32_t>row
        num_out += 1
        row = next_row(draft, parents, draft_len, row, token)
        if row < 0:
            return num_out


def verify(Rows rows not None, Py_ssize_t first_row, draft, Sampler sampler not None, token_t[::1] out not None,
           parents=None):
    """Choose tokens row by row while the draft is right.

    Row first_row follows the token before the draft, the next ones its tokens. Each token is
    chosen from its own row by the complete sampler and committed to it; the draft only decides
    which row comes next. So the text is the same whatever the draft was.

    Args:
        rows: Logits of the decode.
        first_row: Row of the token before the draft; rows up to first_row + len(draft) are read.
        draft: int32, shape (k,), k >= 0.
        sampler: Of the request; advanced by every returned token.
        out: int32, shape (>= k + 1,). Receives the tokens.
        parents: Where the draft is a tree: int32, shape (k,), the index of each token's parent, an earlier one, or
            -1. Of siblings that are the same token the first one counts.

    Returns:
        int: Number of tokens n. 1 <= n <= k + 1, and n - 1 of them are accepted draft tokens; or
        -1 - n when after n tokens no token was possible, such as at the end of a grammar.

    Raises:
        InputError: A row is missing, out is too short or parents is not as described. Nothing is changed then.
        MemoryError: No room. Nothing is changed then.

    Cost: n samplings. Threads: releases the GIL where there is much to read.
    Source: llama.cpp common/sampling.cpp, sample and accept in turn.
    """
    cdef TokensC guess
    cdef const float* logits = rows.row(first_row)
    cdef const int32_t[::1] above
    cdef const int32_t* links = NULL
    cdef int32_t* chosen = NULL
    cdef Py_ssize_t outcome = 0
    tokens_view(draft, "draft", &guess)
    try:
        if first_row + guess.len >= rows.c.num_rows or out.shape[0] < guess.len + 1:
            raise InputError(f"a draft of {guess.len} tokens reads rows {first_row}..{first_row + guess.len} of "
                             f"{rows.c.num_rows} and needs {guess.len + 1} places in out, which has {out.shape[0]}")
        if parents is not None:
            above = parents_view(parents, guess.len)
            links = &above[0] if guess.len else NULL
        chosen = <int32_t*>malloc(<size_t>(guess.len + 1) * sizeof(int32_t))
        if chosen == NULL:
            raise MemoryError(f"no memory to verify {guess.len} tokens")
        if (guess.len + 1) * rows.c.vocab_size < MUCH_TO_READ:
            outcome = verify_rows(logits, rows.c.vocab_size, guess.data, links, guess.len, &sampler.c, &out[0], chosen,
                                  NULL, -1)
        else:
            with nogil:
                outcome = verify_rows(logits, rows.c.vocab_size, guess.data, links, guess.len, &sampler.c, &out[0],
                                      chosen, NULL, -1)
    finally:
        free(chosen)
        tokens_release(&guess)
    return outcome
