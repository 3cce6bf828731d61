"""The command with a terminal as stderr."""

from __future__ import annotations

import os
import pty
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from helpers.forked import Forked


def on_terminal(*arguments: str, **environment: str) -> tuple[str, str]:
    """Run the command, and return what it wrote to the terminal and to stdout."""
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
    process = Forked(
        ["-m", "ngramspec", *arguments],
        stdin=subprocess.DEVNULL, stdout=(stdout := tempfile.TemporaryFile()), stderr=theirs,  # noqa: SIM115
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )  # fmt: skip
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as file, stdout:
        screen = b"".join(_chunks(file))
        assert process.wait(60) == 0, screen.decode()
        stdout.seek(0)
        return screen.decode(), stdout.read().decode()


def _chunks(file: Any) -> Iterator[bytes]:
    while True:
        try:
            data = file.read(1 << 16)
        except OSError:  # the other end was closed
            return
        if not data:
            return
        yield data
