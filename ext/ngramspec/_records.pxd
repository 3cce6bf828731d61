# Counts as flat int32 records, llama.cpp's lookup-cache layout:
#   4 x token (-1 behind the last) | F | F x (token, count)
from ngramspec._shared cimport SharedC, ShardC
from ngramspec._types cimport Status, token_t

cdef enum:
    HEAD = 5              # int32 before the pairs of a record
    PER_HOLD = 64         # followers added per hold of a lock
    PIECE = 1 << 10       # n-grams that are copied under the lock at a time

# How far a copy of all n-grams has got.
cdef struct PieceC:
    Py_ssize_t at         # next n-gram of its shard
    Py_ssize_t stop       # the first one that is not copied
    Py_ssize_t used       # of the room, in units of what is written
    Py_ssize_t room

cdef object record_of(SharedC* x, const token_t* newest, Py_ssize_t size)
# go on to a shard: of the n-grams that there are now
cdef void piece_begin(PieceC* piece, ShardC* shard) noexcept nogil
cdef object all_records(SharedC* x)
cdef (Py_ssize_t, Py_ssize_t) measure_records(object records) except *
cdef object add_records(SharedC* x, object records)
cdef object raise_for(Status status)
