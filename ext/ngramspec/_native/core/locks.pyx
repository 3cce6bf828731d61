"""Locks of pools and caches around a fork: taken before it, so that the child gets whole structures.

The child has one thread. A lock that another one held would stay taken there for ever, and what it
guards would be half written. os.register_at_fork calls the functions below; forks that Python does not
know of are not covered.
"""

import os

from libc.stdlib cimport realloc

from ngramspec._native.core.types cimport ngs_free_lock, ngs_lock, ngs_unlock

cdef int** known = NULL
cdef Py_ssize_t num_known = 0
cdef Py_ssize_t room = 0
cdef int guard = 0       # of the three; taken first


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
    """Take every lock; whoever is inside of one leaves it first. Threads: releases the GIL."""
    cdef Py_ssize_t i
    with nogil:
        ngs_lock(&guard)
        for i in range(num_known):
            ngs_lock(known[i])


def release_all():
    """Give back what hold_all has taken."""
    cdef Py_ssize_t i
    for i in range(num_known):
        ngs_unlock(known[i])
    ngs_unlock(&guard)


def free_all():
    """The same in the child of a fork, where nobody waits any more."""
    cdef Py_ssize_t i
    for i in range(num_known):
        ngs_free_lock(known[i])
    ngs_free_lock(&guard)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=hold_all, after_in_parent=release_all, after_in_child=free_all)
