"""Running a command and reading what it cost: wall and CPU time, peak memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    """One finished command. marks: seconds from the start to each line of stderr."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    stdout: str
    marks: tuple[tuple[float, str], ...]

    def mark(self, text: str) -> float:
        """Return when the first line with this text came on stderr."""
        return next(seconds for seconds, line in self.marks if text in line)


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run a command to its end.

    Raises:
        RuntimeError: It failed; the message holds its last lines.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    assert process.stderr is not None
    marks = []
    for line in process.stderr:
        marks.append((time.perf_counter() - start, line.rstrip()))
    stdout = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]}: {[line for _, line in marks[-3:]]}")
    cpu = usage.ru_utime + usage.ru_stime
    return Ran(seconds, cpu, usage.ru_maxrss / 1024, stdout, tuple(marks))
