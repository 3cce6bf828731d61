"""Running a command and reading what it cost: wall and CPU time, peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Linux counts for a command what the process held that became it, which is what its parent held. So
# a small process is the parent: a peak is never less than that of a bare interpreter. It tells what
# the command cost; its clock is that of all processes.
STARTER = """
import json, os, subprocess, sys, time
with open(int(sys.argv[1]), "w") as told:
    started = time.perf_counter()
    command = subprocess.Popen(sys.argv[2:])
    _, status, used = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    times = [started, time.perf_counter(), used.ru_utime + used.ru_stime]
    json.dump([*times, used.ru_maxrss, command.returncode], told)
"""
RSS_BYTES = 1 if sys.platform == "darwin" else 1024  # of the unit of ru_maxrss


@dataclass(frozen=True)
class Ran:
    """One finished command.

    seconds: From its start to its end.
    cpu_seconds: Of it and all that it has started and waited for.
    peak_mb: The most memory that it has had, or one of these; not of several together.
    marks: Seconds from the start to each line of stderr.
    """

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
    reader, writer = os.pipe()
    with open(reader) as report:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", STARTER, str(writer), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            pass_fds=[writer],
        )
        os.close(writer)
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines = [(time.perf_counter(), line.rstrip()) for line in process.stderr]
            stdout = process.stdout.read()
        text = report.read()
    last = [line for _, line in lines[-3:]]
    if not text:  # it could not be started
        raise RuntimeError(f"{command[0]}: {last}")
    started, ended, cpu, peak, status = json.loads(text)
    if status:
        raise RuntimeError(f"{command[0]}: {last}")
    marks = tuple((seconds - started, line) for seconds, line in lines)
    return Ran(ended - started, cpu, peak * RSS_BYTES / (1 << 20), stdout, marks)
