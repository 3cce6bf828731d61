# Counts as flat int32 records, llama.cpp's lookup-cache layout:
#   4 x token (-1 behind the last) | F | F x (token, count)
from ngramspec._counts cimport CountsC
from ngramspec._types cimport Status, token_t

cdef enum:
    HEAD = 5              # int32 before the pairs of a record
    PER_HOLD = 64         # followers added per hold of a lock

cdef object record_of(CountsC* c, int* lock, const token_t* newest, Py_ssize_t size)
cdef object all_records(CountsC* c, int* lock)
cdef (Py_ssize_t, Py_ssize_t) measure_records(object records) except *
cdef object add_records(CountsC* c, int* lock, object records)
cdef object raise_for(Status status)
