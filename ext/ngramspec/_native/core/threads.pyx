"""Locks that a fork takes, so that the child gets whole structures, and workers that help a caller with a batch.

The child of a fork has only the forking thread. A lock held by another thread would stay taken there for ever,
and the structure it guards could be half written. os.register_at_fork calls the functions below; forks
outside Python are not covered.

While the locks are held the forking thread may still run Python code: other such functions, and destructors of
objects that the collector finds. They may make and destroy pools, but not use them.

Workers are one set of threads for the process, asleep between jobs. They take no GIL and no Python object. One caller
has them at a time; another that comes meanwhile works alone. After a fork the child starts its own.
"""

import os

from libc.stdlib cimport realloc

from ngramspec._native.core.types cimport int64_t, ngs_free_lock, ngs_load64, ngs_lock, ngs_store64, ngs_unlock

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    MOST_CORES = 8  # rows are short work: more threads cost others more than they bring

cdef int** locks = NULL
cdef Py_ssize_t num_locks = 0
cdef Py_ssize_t room = 0
cdef int guard = 0       # guards the three above; taken first
cdef int64_t holder = 0  # the thread that has taken all locks; 0 = none
cdef Py_ssize_t held = 0  # of the known locks, those that it took: the first ones


cdef bint _is_holder() noexcept:
    """Whether this thread has taken all locks, the guard too."""
    return ngs_load64(&holder) == <int64_t>PyThread_get_thread_ident()


cdef int locks_add(int* lock) except -1:
    global locks, num_locks, room
    cdef int** moved
    cdef bint full = False
    cdef bint inside = _is_holder()
    with nogil:
        if not inside:
            ngs_lock(&guard)
        if num_locks == room:
            moved = <int**>realloc(locks, <size_t>(2 * room + 16) * sizeof(int*))
            full = moved == NULL
            if not full:
                locks = moved
                room = 2 * room + 16
        if not full:
            locks[num_locks] = lock
            num_locks += 1
        if not inside:
            ngs_unlock(&guard)
    if full:
        raise MemoryError("no memory for one more lock")
    return 0


cdef void locks_remove(int* lock) noexcept:
    global num_locks, held
    cdef Py_ssize_t i
    cdef bint inside = _is_holder()
    with nogil:
        if not inside:
            ngs_lock(&guard)
        for i in range(num_locks):
            if locks[i] == lock:
                if i < held:  # the last of those that are held takes its place
                    held -= 1
                    locks[i] = locks[held]
                    i = held
                num_locks -= 1
                locks[i] = locks[num_locks]
                break
        if not inside:
            ngs_unlock(&guard)


def hold_all():
    """Take every lock, waiting until it is free. Threads: releases the GIL."""
    global held
    cdef Py_ssize_t i
    with nogil:
        ngs_lock(&guard)
        for i in range(num_locks):
            ngs_lock(locks[i])
        held = num_locks
        ngs_store64(&holder, <int64_t>PyThread_get_thread_ident())


def release_all():
    """Release what hold_all took."""
    global held
    cdef Py_ssize_t i
    for i in range(held):
        ngs_unlock(locks[i])
    held = 0
    ngs_store64(&holder, 0)
    ngs_unlock(&guard)


def free_all():
    """Reset all locks in the child of a fork, where no thread waits."""
    global held
    cdef Py_ssize_t i
    for i in range(num_locks):
        ngs_free_lock(locks[i])
    held = 0
    ngs_store64(&holder, 0)
    ngs_free_lock(&guard)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=hold_all, after_in_parent=release_all, after_in_child=free_all)


cdef extern from "ngs_workers.h" nogil:
    ctypedef struct ngs_workers:
        int num
        int all
    ctypedef void (*ngs_task)(void* job, int lane) noexcept
    ngs_workers ngs_all_workers
    int ngs_call_workers(ngs_workers* w, ngs_task task, void* job, int lanes)
    void ngs_dismiss_workers(ngs_workers* w)
    void ngs_forget_workers(ngs_workers* w)


cdef bint call_workers(Task task, void* job, int lanes) noexcept nogil:
    return ngs_call_workers(&ngs_all_workers, <ngs_task>task, job, lanes)


cdef void dismiss_workers() noexcept nogil:
    ngs_dismiss_workers(&ngs_all_workers)


cdef int usable_cores() except -1:
    return max(1, min(MOST_CORES, _affinity(), _quota()))


cdef object _affinity():
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


cdef object _quota():
    """Return the cores that a container's control group grants, without one MOST_CORES."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return MOST_CORES if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return MOST_CORES


def num_workers():
    """Return how many threads were started so far in this process; for tests."""
    return ngs_all_workers.num


def await_workers(bint all):
    """Let callers wait until all threads have come that they called, so that tests know that these took part."""
    ngs_all_workers.all = all


def forget_workers():
    """Begin anew in the child of a fork, where the threads are gone."""
    ngs_forget_workers(&ngs_all_workers)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_workers)
