# Shared counts to and from the data of files: llama.cpp's lookup caches as int32 records
#   4 x token (-1 after the last) | F | F x (token, count)
# and packed entries (core.packing), which statistics files use.
from ngramspec._native.cache.counts cimport ShardC, SharedC
from ngramspec._native.core.types cimport Status, int32_t, token_t

cdef enum:
    HEAD = 5              # int32 before the pairs of a record
    PER_HOLD = 64         # followers added or copied per hold of a lock: who waits for it still spins then

# Progress of a copy of all n-grams.
cdef struct PieceC:
    Py_ssize_t at         # next n-gram of its shard
    Py_ssize_t stop       # the first one that is not copied
    int32_t follower      # of n-gram `at`, the next one if some are copied; -1 = none is
    Py_ssize_t record     # where its record begins
    Py_ssize_t used       # of `room`, in items written
    Py_ssize_t room

cdef object record_of(SharedC* x, const token_t* newest, Py_ssize_t size)
cdef object all_records(SharedC* x)
cdef object add_records(SharedC* x, object records)
cdef object raise_for(Status status)

cdef object entries_of_counts(SharedC* x, Py_ssize_t size)
cdef int add_entries(SharedC* x, object entries, Py_ssize_t size) except -1
