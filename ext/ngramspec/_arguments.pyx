"""Check and view token arguments: int32 arrays are viewed in place, short lists are converted."""

import numpy as np

from ngramspec.errors import InputError

cdef object _EMPTY = np.empty(0, dtype=np.int32)


cdef const token_t[::1] token_view(object token_ids, str name):
    """View token_ids as int32, C-contiguous, 1-D, all >= 0; InputError names what it got instead."""
    cdef const token_t[::1] view
    cdef token_t signs = 0
    cdef Py_ssize_t i
    if isinstance(token_ids, (list, tuple)):
        token_ids = _from_sequence(token_ids, name)
    try:
        view = token_ids
    except (ValueError, TypeError, BufferError):
        raise _refusal(token_ids, name) from None
    for i in range(view.shape[0]):
        signs |= view[i]
    if signs < 0:
        i = int(np.argmax(np.asarray(view) < 0))
        raise InputError(f"{name} must hold token ids >= 0, got {view[i]} at position {i}")
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


cdef object _refusal(object token_ids, str name):
    expected = f"{name} must be an int32 array of shape (n,), C-contiguous"
    if token_ids is None:
        return InputError(f"{expected}, got None")
    dtype = getattr(token_ids, "dtype", None)
    shape = getattr(token_ids, "shape", None)
    if dtype is None or shape is None:
        return InputError(f"{expected}, got {type(token_ids).__name__}")
    strided = "" if getattr(getattr(token_ids, "flags", None), "c_contiguous", True) else ", strided"
    return InputError(f"{expected}, got {dtype} of shape {tuple(shape)}{strided}")
