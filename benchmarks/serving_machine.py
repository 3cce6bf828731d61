"""What Linux tells of processes, their processor time and memory, and the cores they may use."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 1 / os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  # idle and waiting for disks, in a line of /proc/stat
GUEST = 8  # this field and later ones are part of others
PROCESS_CLOCK = 2  # of another process: what clock_getcpuclockid returns


@dataclass(frozen=True)
class Cores:
    """The cores that servers and the client are kept to; all of them where there is no such way."""

    servers: frozenset[int]
    client: frozenset[int]

    def keep_client(self) -> None:
        """Keep this process to the client's cores."""
        keep(self.client)

    def __str__(self) -> str:
        servers, client = (", ".join(map(str, sorted(one))) for one in (self.servers, self.client))
        return f"servers on cores {servers}; the client on {client}"


def share(threads: int, available: frozenset[int] | None = None) -> Cores:
    """Give the client the last core, and servers the others; all if they have a thread for each.

    So a server of two threads on two cores has both, and the client stands on one of them: always
    the same one, and for every server.
    """
    cores = sorted(available or usable())
    if threads >= len(cores):
        return Cores(frozenset(cores), frozenset(cores[-1:]))
    return Cores(frozenset(cores[:-1]), frozenset(cores[-1:]))


def usable() -> frozenset[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def keep(cores: frozenset[int]) -> None:
    """Keep this process, and all it starts, to these cores; nothing where that cannot be said."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def read(path: str) -> str:
    """Return a file of /proc, or nothing where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def busy_seconds() -> float:
    """Return how long the cores that this program was started on have worked, for anyone."""
    rows = (line.split() for line in read("/proc/stat").splitlines())
    ticks = [
        int(ticks)
        for name, *row in rows
        if name in NAMES
        for i, ticks in enumerate(row[:GUEST])
        if i not in IDLE
    ]
    return SECONDS * sum(ticks)


def process_seconds(pid: int) -> float:
    """Return how long the processors have worked for a process, to the nanosecond."""
    try:
        return time.clock_gettime((~pid << 3) | PROCESS_CLOCK)
    except OSError:  # it has ended
        return 0.0


def peak_mb(pid: int) -> float:
    """Return the most memory that a process ever held."""
    lines = read(f"/proc/{pid}/status").splitlines()
    return sum(float(one.split()[1]) for one in lines if one.startswith("VmHWM")) / 1024


NAMES = {f"cpu{core}" for core in usable()}  # before any process is kept to some of them


@dataclass
class Usage:
    """Cores used since it was made: by this program, by a server (pid 0: none), by all others."""

    pid: int = 0
    _start: float = field(default_factory=time.perf_counter)
    _own: float = field(default_factory=time.process_time)
    _busy: float = field(default_factory=busy_seconds)
    _server: float = 0.0

    def __post_init__(self) -> None:
        self._server = self._server_seconds()

    def _server_seconds(self) -> float:
        return process_seconds(self.pid) if self.pid else 0.0

    def cores(self) -> dict[str, float]:
        """Return the three numbers.

        What others used is only known to a few ticks of the machine's clock, of 10 ms as a rule:
        two are taken off, and short blocks may seem quieter than they were.
        """
        seconds = time.perf_counter() - self._start
        client = time.process_time() - self._own
        server = self._server_seconds() - self._server
        others = max(0.0, busy_seconds() - self._busy - server - client - 2 * SECONDS)
        used = {"client": client, "server": server, "others": others}
        return {name: one / seconds for name, one in used.items()}
