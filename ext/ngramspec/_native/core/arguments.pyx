"""Python arguments and results: int32 arrays are viewed in place, short lists are converted, rows become lists."""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_FromLong
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t

from ngramspec._native.core.types cimport int32_t, token_t

import numpy as np

from ngramspec.errors import InputError

cdef object _EMPTY = np.empty(0, dtype=np.int32)


cdef int tokens_view(object token_ids, str name, TokensC* tokens, bint check=True) except -1:
    """View token_ids as int32, C-contiguous, 1-D, all >= 0; InputError names what it got instead.

    check=False skips the check of the ids, for a caller that checks only the new ones. Uses the plain
    buffer call: a typed memoryview would make each accept cost three times as much.
    """
    cdef token_t signs = 0
    cdef Py_ssize_t i
    if isinstance(token_ids, (list, tuple)):
        token_ids = _from_sequence(token_ids, name)
    try:
        PyObject_GetBuffer(token_ids, &tokens.buffer, PyBUF_FORMAT | PyBUF_ND)
    except (ValueError, TypeError, BufferError):
        raise _refusal(token_ids, name) from None
    if tokens.buffer.ndim != 1 or tokens.buffer.itemsize != sizeof(token_t) or not _is_signed(tokens.buffer.format):
        PyBuffer_Release(&tokens.buffer)
        raise _refusal(token_ids, name)
    tokens.data = <const token_t*>tokens.buffer.buf
    tokens.len = tokens.buffer.shape[0]
    for i in range(tokens.len if check else 0):
        signs |= tokens.data[i]
    if signs < 0:
        i = 0
        while tokens.data[i] >= 0:
            i += 1
        error = bad_token(name, tokens.data[i], i, 0)
        PyBuffer_Release(&tokens.buffer)
        raise error
    return 0


cdef object bad_token(str name, int token, Py_ssize_t position, Py_ssize_t vocab_size):
    bounds = f"in 0..{vocab_size - 1}" if vocab_size else ">= 0"
    return InputError(f"{name} must hold token ids {bounds}, got {token} at position {position}")


cdef bint _is_signed(const char* format) noexcept:
    """Whether a buffer's item format is a native signed integer; its size is checked separately."""
    return format != NULL and format[0] != 0 and format[1] == 0 and format[0] in b"il"


cdef void tokens_release(TokensC* tokens):
    PyBuffer_Release(&tokens.buffer)


cdef const token_t[::1] token_view(object token_ids, str name):
    """Do the same with a typed memoryview, which needs no release; for rare calls."""
    cdef TokensC tokens
    cdef const token_t[::1] view
    if isinstance(token_ids, (list, tuple)):
        token_ids = _from_sequence(token_ids, name)
    tokens_view(token_ids, name, &tokens)
    view = token_ids
    tokens_release(&tokens)
    return view


cdef object _from_sequence(object token_ids, str name):
    if not token_ids:
        return _EMPTY
    try:
        array = np.asarray(token_ids)
    except ValueError:
        raise InputError(f"{name} must be a flat sequence of token ids") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refusal(array, name)
    if array.min() < 0 or array.max() > 0x7FFFFFFF:
        bad = array[(array < 0) | (array > 0x7FFFFFFF)][0]
        raise InputError(f"{name} must hold token ids in 0..2147483647, got {bad}")
    return array.astype(np.int32)


cdef object _refusal(object values, str name, str expected="an int32 array of shape (n,), C-contiguous"):
    dtype = getattr(values, "dtype", None)
    shape = getattr(values, "shape", None)
    if dtype is None or shape is None:
        got = "None" if values is None else type(values).__name__
    else:
        strided = "" if getattr(getattr(values, "flags", None), "c_contiguous", True) else ", strided"
        kind = "" if isinstance(values, np.ndarray) else f", a {type(values).__name__}"
        got = f"{dtype} of shape {tuple(shape)}{strided}{kind}"
    return InputError(f"{name} must be {expected}, got {got}")


cdef bint overlap(const int32_t* one, Py_ssize_t num, const int32_t* other, Py_ssize_t num_other) noexcept nogil:
    """Whether two runs of numbers have memory in common; an empty one has none."""
    return num > 0 and num_other > 0 and one < other + num_other and other < one + num


cdef const token_t[:, ::1] token_rows_view(object values, str name):
    """View rows of token ids: int32, shape (n, k), C-contiguous, all >= 0; InputError names what it got instead."""
    cdef const token_t[:, ::1] view = None
    cdef Py_ssize_t i, k
    try:
        view = values
    except (ValueError, TypeError, BufferError):
        pass
    if view is None:
        raise _refusal(values, name, "an int32 array of shape (n, k), C-contiguous")
    for i in range(view.shape[0]):
        for k in range(view.shape[1]):
            if view[i, k] < 0:
                raise InputError(f"{name} must hold token ids >= 0, got {view[i, k]} at ({i}, {k})")
    return view


cdef const float[:, ::1] logits_view(object values, str name="logits"):
    """View rows of numbers: float32, shape (n, vocab_size), C-contiguous; InputError names what it got instead."""
    cdef const float[:, ::1] view
    try:
        view = values
        if view is not None:
            return view
    except (ValueError, TypeError, BufferError):
        pass
    raise _refusal(values, name, "a float32 array of shape (n, k), C-contiguous")


cdef const uint64_t[:, ::1] entries_view(object entries):
    """View packed entries: uint64, shape (n, 2), C-contiguous; InputError names what it got instead."""
    cdef const uint64_t[:, ::1] view
    try:
        view = entries
        if view.shape[1] == 2:
            return view
    except (ValueError, TypeError, BufferError):
        pass
    raise _refusal(entries, "entries", "a uint64 array of shape (n, 2), C-contiguous")


cdef const int32_t[::1] parents_view(object values, Py_ssize_t n):
    """View the parents of n tokens: int32, shape (n,), C-contiguous, each -1 or an earlier one."""
    cdef const int32_t[::1] view
    cdef Py_ssize_t i
    try:
        view = values
    except (ValueError, TypeError, BufferError):
        raise _refusal(values, "parents") from None
    if view.shape[0] != n:
        raise InputError(f"expected a parent for each of {n} tokens, got {view.shape[0]}")
    for i in range(n):
        if not -1 <= view[i] < i:
            raise InputError(f"parents[{i}] must be in -1..{i - 1}, got {view[i]}")
    return view


cdef const float[::1] floats_view(object values, str name):
    """View values: float32, shape (n,), C-contiguous; InputError names what it got instead."""
    cdef const float[::1] view
    try:
        view = values
        if view is not None:
            return view
    except (ValueError, TypeError, BufferError):
        pass
    raise _refusal(values, name, "a float32 array of shape (n,), C-contiguous")


cdef const float[::1] probabilities_view(object values, str name):
    """View float32 numbers, each in 0..1."""
    cdef const float[::1] view = floats_view(values, name)
    cdef Py_ssize_t i
    for i in range(view.shape[0]):
        if not 0.0 <= view[i] <= 1.0:
            raise InputError(f"{name} must hold probabilities in 0..1, got {view[i]} at position {i}")
    return view


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


def lists_of(const token_t[:, ::1] rows not None, const int32_t[::1] lengths not None):
    """Return the first lengths[i] ids of each row as a list of lists.

    Args:
        rows: int32, shape (r, w).
        lengths: int32, shape (b,), b <= r: each is taken as 0..w.

    Cost: O(ids returned).
    """
    cdef Py_ssize_t i, k, n
    cdef list lists = PyList_New(min(lengths.shape[0], rows.shape[0]))
    cdef list row
    for i in range(len(lists)):
        n = max(<Py_ssize_t>0, min(<Py_ssize_t>lengths[i], rows.shape[1]))
        row = PyList_New(n)
        for k in range(n):
            id = PyLong_FromLong(rows[i, k])
            Py_INCREF(id)
            PyList_SET_ITEM(row, k, id)
        Py_INCREF(row)
        PyList_SET_ITEM(lists, i, row)
    return lists
