"""same_scheduling: undoes what llama.cpp does to the scheduling of a thread that decodes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def same_scheduling() -> Iterator[None]:
    """Return this thread to its processors and its class of scheduling after the block.

    A pool gives its mask and priority to the thread that calls decode, for good: as root the class
    may be a real-time one, and all processes that the thread starts later would hold up the others.
    """
    if sys.platform != "linux":
        yield
        return
    cpus, policy = os.sched_getaffinity(0), os.sched_getscheduler(0)
    try:
        yield
    finally:
        if os.sched_getaffinity(0) != cpus:
            os.sched_setaffinity(0, cpus)
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, os.sched_param(0))
