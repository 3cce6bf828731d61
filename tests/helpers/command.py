"""`ngramspec serve` in a process of its own, for tests of its signals, files and exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from helpers.forked import Forked
from helpers.paths import ROOT
from helpers.serving import wait_until


class Process:
    """The command, and what it has written to stderr.

    program: What runs instead of `-m ngramspec`, given to Python.
    ignoring: A signal that is ignored when it starts, as nohup does with SIGHUP.
    reading: False = nobody reads stderr, unless `read` is called.
    loaded: As Forked has it.
    """

    def __init__(
        self,
        *arguments: str,
        program: Sequence[str] = ("-m", "ngramspec"),
        ignoring: int = 0,
        reading: bool = True,
        loaded: bool = True,
        **environment: str,
    ) -> None:
        names = [name for name in os.environ if not name.startswith(("LLAMA_", "OLLAMA_"))]
        handler = signal.signal(ignoring, signal.SIG_IGN) if ignoring else None
        self.process = Forked(
            [*program, "serve", "--port", "0", *arguments],
            loaded=loaded,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={n: os.environ[n] for n in names} | {"LLAMA_ARG_CALIBRATE": "0"} | environment,
            cwd=ROOT,
        )
        if ignoring:
            signal.signal(ignoring, handler)
        self.lines: list[str] = []
        self._reader: threading.Thread | None = None
        if reading:
            self.read()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> None:
        """Begin to read stderr."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines += (line.rstrip("\n") for line in self.process.stderr)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def url(self) -> str:
        """Wait until it listens and return where."""
        wait_until(lambda: "listening on" in self.text or self.process.poll() is not None, 60)
        match = re.search(r"listening on (\S+)", self.text)
        assert match is not None, self.text
        return match[1]

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it as a service manager does and return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(60)
        self._wait_for_reader()
        return code

    def resident(self) -> int:
        """Return its resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert match is not None, "the server is gone"
        return int(match[1]) << 10

    def close(self) -> None:
        """End it in whatever way."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            self._wait_for_reader()
            pipe.close()

    def _wait_for_reader(self) -> None:
        if self._reader is not None:
            self._reader.join(10)
