"""What Linux tells of processes: their processor time and memory, and that of all others."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 1 / os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  # idle and waiting for disks, in the first line of /proc/stat
GUEST = 8  # this field and later ones are part of others


def read(path: str) -> str:
    """Return a file of /proc, or nothing where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def busy_seconds() -> float:
    """Return how long the processors have worked, for anyone."""
    ticks = [int(one) for one in read("/proc/stat").partition("\n")[0].split()[1:]]
    return SECONDS * sum(t for i, t in enumerate(ticks[:GUEST]) if i not in IDLE)


def process_seconds(pid: int) -> float:
    """Return how long the processors have worked for a process."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return SECONDS * sum(int(one) for one in fields[11:13])


def peak_mb(pid: int) -> float:
    """Return the most memory that a process ever held."""
    lines = read(f"/proc/{pid}/status").splitlines()
    return sum(float(one.split()[1]) for one in lines if one.startswith("VmHWM")) / 1024


@dataclass
class Usage:
    """Cores used since it was made: by this program, by a server, by all others together."""

    pid: int
    _start: float = field(default_factory=time.perf_counter)
    _own: float = field(default_factory=time.process_time)
    _busy: float = field(default_factory=busy_seconds)
    _server: float = 0.0

    def __post_init__(self) -> None:
        self._server = process_seconds(self.pid)

    def cores(self) -> dict[str, float]:
        """Return the three numbers."""
        seconds = time.perf_counter() - self._start
        client = time.process_time() - self._own
        server = process_seconds(self.pid) - self._server
        others = max(0.0, busy_seconds() - self._busy - server - client)
        used = {"client": client, "server": server, "others": others}
        return {name: one / seconds for name, one in used.items()}
