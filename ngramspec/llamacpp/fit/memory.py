"""host_space: the memory that this process can still use, with the limits of its container."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KIB = 1024
M_ARENA_MAX = -8  # glibc's malloc.h
THREADS = 96 << 20  # bytes of address space, mostly unused: stacks of a dozen threads


@dataclass(frozen=True)
class HostSpace:
    """Bytes of the host's memory.

    free: What can be used without swapping; what files have cached counts as free.
    total: All there is, or the limit of the container.
    swap: Free swap space; 0 under a limit.
    limit: Whose limit counts, "" where it is the machine's memory.
    """

    free: int
    total: int
    swap: int = 0
    limit: str = ""


@dataclass(frozen=True)
class _Names:
    """What files of a control group are called: version 1 or 2."""

    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]  # keys in memory.stat of what the kernel gives back when it must


_V1 = _Names(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Names(
    ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")
)  # fmt: skip


def host_space(root: Path = Path("/")) -> HostSpace | None:
    """Return the host's memory, None where the system does not tell as Linux does.

    The limits of all control groups above this process count, of version 1 and 2.

    root: Where proc and sys/fs/cgroup are.
    """
    meminfo = _table(root / "proc" / "meminfo")
    if "MemTotal" not in meminfo or "MemAvailable" not in meminfo:
        return None
    free, total = meminfo["MemAvailable"] * KIB, meminfo["MemTotal"] * KIB
    limit = ""
    for group, names in _groups(root):
        for most in filter(None, (_number(group / name) for name in names.limits)):
            if most >= meminfo["MemTotal"] * KIB:
                continue
            limit, total = "the container", min(total, most)
            used = _number(group / names.used) or 0
            stat = _table(group / "memory.stat")
            cached = sum(stat.get(name, 0) for name in names.cached)
            free = min(free, max(0, most - max(0, used - cached)))
    room = _address_space()
    if room is not None and room < free:
        limit, total, free = "ulimit -v", min(total, room), room
    swap = 0 if limit else meminfo.get("SwapFree", 0) * KIB
    return HostSpace(free, total, swap, limit)


def _address_space() -> int | None:
    """Return the bytes that this process can still map beside its threads, None = no limit.

    Under a limit threads begin to share one heap: glibc reserves 64 MiB for each other, and would
    do so until no thread can start.
    """
    import resource  # only where proc is

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, most - pages * resource.getpagesize() - THREADS)


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the folders of the memory's control groups of this process, up to the topmost."""
    mounted = root / "sys" / "fs" / "cgroup"
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top, names = mounted, _V2
        elif "memory" in controllers.split(","):
            top, names = mounted / "memory", _V1
        else:
            continue
        # In a container the path may be the host's, which is not there: the topmost is its own.
        own = PurePosixPath(path).relative_to("/") if path.startswith("/") else PurePosixPath()
        for part in (own, *own.parents):
            if ".." not in part.parts and (top / part).is_dir():
                yield top / part, names


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, as for "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _table(path: Path) -> Mapping[str, int]:
    """Return a file of names and numbers; one that cannot be read is empty."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    numbers = {}
    for line in lines:
        name, *rest = line.replace(":", " ").split()[:2] or [""]
        if rest and rest[0].isdigit():
            numbers[name] = int(rest[0])
    return numbers
