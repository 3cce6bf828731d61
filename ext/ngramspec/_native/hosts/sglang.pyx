"""tree_rows: lay out a draft tree for an engine with a fixed number of rows per request."""

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from ngramspec._native.core.arguments cimport parents_view, token_view
from ngramspec._native.core.types cimport int32_t, token_t

from ngramspec.errors import InputError

cdef enum:
    MOST = 256            # tokens of a tree


cdef void _depths(const int32_t* parents, Py_ssize_t n, int* depths) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        depths[i] = 1 if parents[i] < 0 else depths[parents[i]] + 1


cdef void _lay_out(const token_t* tokens, const int32_t* parents, const int* depths, Py_ssize_t n, int64_t* rows,
                   int64_t* mask, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t[MOST] row_of
    cdef Py_ssize_t next_row = 1
    cdef Py_ssize_t i, above
    cdef int depth = 1
    mask[0] = 1
    while next_row <= n:
        for i in range(n):
            if depths[i] != depth:
                continue
            above = row_of[parents[i]] if parents[i] >= 0 else 0
            rows[next_row] = tokens[i]
            memcpy(mask + next_row * width, mask + above * width, <size_t>(above + 1) * sizeof(int64_t))
            mask[next_row * width + next_row] = 1
            row_of[i] = next_row
            next_row += 1
        depth += 1
    for i in range(next_row, width):
        mask[i * width] = mask[i * width + i] = 1


@cython.binding(True)
def tree_rows(tokens, parents, token_t root, int64_t[::1] out_tokens not None, int64_t[::1] out_mask not None):
    """Write a tree breadth first below the newest token, and its attention mask.

    Args:
        tokens: int32, shape (n,), n < d and n <= 256.
        parents: int32, shape (n,), -1 <= parents[i] < i; -1 = the newest token of the text.
        root: The newest token.
        out_tokens: int64, shape (d,), d >= 1. Receives root, the tree, and 0 in unused rows.
        out_mask: int64, shape (d * d,). Receives 1 at [i * d + j] where row j is i or an ancestor of it,
            otherwise 0. Unused rows are children of the root.

    Raises:
        InputError: An argument is not as described. Nothing is written then.

    Cost: O(d * d). Threads: keeps the GIL.
    Source: the rows of SGLang's NGRAM speculation.
    """
    cdef const token_t[::1] ids = token_view(tokens, "tokens")
    cdef Py_ssize_t n = ids.shape[0]
    cdef const int32_t[::1] above = parents_view(parents, n)
    cdef Py_ssize_t width = out_tokens.shape[0]
    cdef int[MOST] depths
    if n > MOST or n >= width:
        raise InputError(f"expected fewer tokens than the {width} rows and at most {MOST}, got {n}")
    if out_mask.shape[0] != width * width:
        raise InputError(f"out_mask must have {width * width} entries, got {out_mask.shape[0]}")
    if n:
        _depths(&above[0], n, depths)
    memset(&out_tokens[0], 0, <size_t>width * sizeof(int64_t))
    memset(&out_mask[0], 0, <size_t>(width * width) * sizeof(int64_t))
    out_tokens[0] = root
    _lay_out(&ids[0] if n else NULL, &above[0] if n else NULL, depths, n, &out_tokens[0], &out_mask[0], width)
