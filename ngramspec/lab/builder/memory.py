"""How a build divides the memory that it may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

TALLY_BYTES = 36  # per token: up to 8 to hold it, 16 to 24 to count, and what the allocator keeps
MOST_TOKENS = 1 << 31  # half of a tally's limit: more are added before the next check
IN_FLIGHT = 32 << 20  # texts, token ids and buffers between reading and counting
UNKNOWN_RESIDENT = 120 << 20
_MMAP_THRESHOLD = -3  # a parameter of glibc's mallopt
_LARGE_BLOCK = 1 << 20
_STATUS = Path("/proc/self/statm")


def tokens_within(memory: int) -> int:
    """Return how many tokens all tallies may hold so that the process stays below `memory`.

    What interpreter, libraries and vocabulary already use is subtracted, but tallies always get an
    eighth of `memory`.
    """
    free = memory - resident_bytes() - IN_FLIGHT
    return min(max(free, memory // 8) // TALLY_BYTES, MOST_TOKENS)


def read_bytes(memory: int) -> int:
    """Return the part of `memory` for the read buffers of runs being merged."""
    return memory // 16


def return_large_blocks() -> None:
    """Let the allocator give large blocks back to the system as soon as they are free.

    Otherwise glibc keeps up to 32 MiB per thread. This affects the whole process, so it is for
    programs that only build; without glibc it does nothing.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def resident_bytes() -> int:
    """Return the resident memory of this process, a guess if the system does not report it."""
    try:
        pages = int(_STATUS.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return UNKNOWN_RESIDENT
    return pages * os.sysconf("SC_PAGE_SIZE")
