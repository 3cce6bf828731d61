"""build-cache on a terminal: the progress bar, and none where it is not wanted."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import FEW

pytestmark = pytest.mark.usefixtures("empty_folder")


def terminal_output(*arguments: str) -> str:
    """Run the command with a terminal as stderr and return what it wrote there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ngramspec", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as file:
        said = b"".join(_chunks(file))
    assert process.wait(60) == 0
    return said.decode()


def _chunks(file: Any) -> Iterator[bytes]:
    while True:
        try:
            data = file.read(1 << 16)
        except OSError:  # the other end was closed
            return
        if not data:
            return
        yield data


def test_progress_bar_on_a_terminal(text: str) -> None:
    Path("text.jsonl").write_text(text)
    said = terminal_output("build-cache", "text.jsonl", "-o", "out.ngc", "-j", "1")
    figures = r"reading .*?\d+% of 3\.\d MiB, [\d.]+ MB/s, [\d.]+ Mtok/s, [\d.]+ s left"
    assert re.search(figures, said), said
    assert "reading" not in said[said.index("writing") :]
    assert said.endswith("\x1b[2K")  # the bar is gone at the end
    said = terminal_output("build-cache", *FEW, "-o", "out.ngc", "--no-progress")
    assert "\x1b" not in said
