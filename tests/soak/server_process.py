"""`ngramspec serve` in a process of its own, to be measured and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.paths import ROOT

PATIENCE = 60.0  # seconds until it listens


class ServerProcess:
    """A server on the embedded model and a free port; stopped at the end of the block.

    log: What it writes to stderr.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / f"stderr-{time.monotonic_ns()}.txt"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "OLLAMA_"))}
        with self.log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ngramspec", "serve", "--port", "0", *arguments],
                stderr=stderr,
                env=clean,
                cwd=ROOT,
            )
        self.url = self._wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """Ask it to end, as SIGTERM does; return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.kill()
        self._process.wait()

    def resident(self) -> int:
        """Return its resident memory in bytes."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("the server is gone")

    def _wait(self) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            match = re.search(r"listening on (\S+)", self.log.read_text())
            if match:
                return match[1]
            time.sleep(0.05)
        raise AssertionError(f"the server does not listen: {self.log.read_text()}")
