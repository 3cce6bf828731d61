"""Take the locks of pools and caches before a fork, so that the child gets whole structures.

The child has only the forking thread. A lock held by another thread would stay taken there for ever,
and the structure it guards could be half written. os.register_at_fork calls the functions below; forks
outside Python are not covered.
"""

import os

from libc.stdlib cimport realloc

from ngramspec._native.core.types cimport ngs_free_lock, ngs_lock, ngs_unlock

cdef int** known = NULL
cdef Py_ssize_t num_known = 0
cdef Py_ssize_t room = 0
cdef int guard = 0       # guards the three above; taken first


cdef int locks_add(int* lock) except -1:
    global known, num_known, room
    cdef int** moved
    cdef bint full = False
    with nogil:
        ngs_lock(&guard)
        if num_known == room:
            moved = <int**>realloc(known, <size_t>(2 * room + 16) * sizeof(int*))
            full = moved == NULL
            if not full:
                known = moved
                room = 2 * room + 16
        if not full:
            known[num_known] = lock
            num_known += 1
        ngs_unlock(&guard)
    if full:
        raise MemoryError("no memory for one more lock")
    return 0


cdef void locks_remove(int* lock) noexcept:
    global num_known
    cdef Py_ssize_t i
    with nogil:
        ngs_lock(&guard)
        for i in range(num_known):
            if known[i] == lock:
                num_known -= 1
                known[i] = known[num_known]
                break
        ngs_unlock(&guard)


def hold_all():
    """Take every lock, waiting until it is free. Threads: releases the GIL."""
    cdef Py_ssize_t i
    with nogil:
        ngs_lock(&guard)
        for i in range(num_known):
            ngs_lock(known[i])


def release_all():
    """Release what hold_all took."""
    cdef Py_ssize_t i
    for i in range(num_known):
        ngs_unlock(known[i])
    ngs_unlock(&guard)


def free_all():
    """Reset all locks in the child of a fork, where no thread waits."""
    cdef Py_ssize_t i
    for i in range(num_known):
        ngs_free_lock(known[i])
    ngs_free_lock(&guard)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=hold_all, after_in_parent=release_all, after_in_child=free_all)
