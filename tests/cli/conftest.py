"""Fixtures: the command in this process, and as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Return a function that runs the command in this process."""
    from ngramspec.cli import main

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, prog_name="ngramspec")

    return run


@pytest.fixture
def spawn() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `python -m ngramspec` with pipes, so without a terminal."""

    def run(
        *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR")}
        return subprocess.run(
            [sys.executable, "-m", "ngramspec", *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            env={**clean, "COLUMNS": "80", **environment},
            timeout=120,
        )

    return run
