"""Rows of token ids as Python lists, for engines that want them so."""

from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_FromLong
from cpython.ref cimport Py_INCREF

from ngramspec._native.core.types cimport int32_t, token_t


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
