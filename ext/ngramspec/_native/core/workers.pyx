"""Threads that help a caller with the rows of a batch: one set for the process, asleep between jobs.

They take no GIL and no Python object. One caller has them at a time; another that comes meanwhile works alone.
After a fork the child starts its own.
"""

import os

cdef extern from "ngs_workers.h" nogil:
    ctypedef struct ngs_workers:
        int num
        int all
    ctypedef void (*ngs_task)(void* job, int lane) noexcept
    ngs_workers ngs_all_workers
    int ngs_call_workers(ngs_workers* w, ngs_task task, void* job, int lanes)
    void ngs_dismiss_workers(ngs_workers* w)
    void ngs_forget_workers(ngs_workers* w)

cdef enum:
    MOST_CORES = 8  # rows are short work: more threads cost others more than they bring


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
