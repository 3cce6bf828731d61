"""build-cache on a terminal: the progress bar, and none where it is not wanted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.cli import FEW
from helpers.terminal import on_terminal

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_progress_bar_on_a_terminal(text: str) -> None:
    Path("text.jsonl").write_text(text)
    screen, _ = on_terminal("build-cache", "text.jsonl", "-o", "out.ngc", "-j", "1")
    figures = r"reading .*?\d+% of 1\.\d MiB, [\d.]+ MB/s, [\d.]+ Mtok/s, [\d.]+ s left"
    assert re.search(figures, screen), screen
    assert "reading" not in screen[screen.index("writing") :]
    assert screen.endswith("\x1b[2K")  # the bar is gone at the end
    screen, _ = on_terminal("build-cache", *FEW, "-o", "out.ngc", "--no-progress")
    assert "\x1b" not in screen
