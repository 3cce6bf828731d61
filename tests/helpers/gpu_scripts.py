"""The scripts of benchmarks/gpu, and how tests run them."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

GPU = ROOT / "benchmarks" / "gpu"


def needs(*modules: str) -> None:
    """Skip a test where a module is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def run_here(script: str, *options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script in this process, where torch is loaded already: that takes seconds."""
    monkeypatch.syspath_prepend(str(GPU))
    monkeypatch.setattr(sys, "argv", [str(GPU / script), *options])
    runpy.run_path(str(GPU / script), run_name="__main__")


def run(script: str, *options: str, cwd: Path) -> str:
    """Run a script as a user does, and return what it printed."""
    command = (sys.executable, str(GPU / script), *options)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
