# RowsC: the logits of the last decode, where the target keeps them.
from ngramspec._types cimport token_t

cdef struct RowsC:
    const float* data      # num_rows * vocab_size, row after row; valid until the next decode
    Py_ssize_t num_rows    # 0 = none
    Py_ssize_t vocab_size  # >= 1

cdef token_t row_argmax(const float* row, Py_ssize_t n) noexcept nogil

cdef class Rows:
    cdef RowsC c
    cdef object _owner     # keeps data alive when it is an array's
    cdef const float* row(self, Py_ssize_t index) except NULL
