"""Every test has a time limit, also one that hangs in native code and never gives the GIL back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

HANGING = """
import ctypes
import time

def test_waits():
    time.sleep(60)

def test_spins_with_the_gil():
    ctypes.PyDLL({library!r}).spin()

def test_goes_on():
    pass
"""


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path: Path) -> None:
    source, library = tmp_path / "spin.c", tmp_path / "spin.so"
    source.write_text("void spin(void) { for (volatile int i = 0;;) i = 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    (tmp_path / "test_hanging.py").write_text(HANGING.format(library=str(library)))
    limits = ["-o", "timeout=0.5", "-o", "faulthandler_timeout=1.5"]
    project = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    plugins = ["-p", "xdist", "-p", "pytest_timeout"]  # three processes would load others
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *project, *limits, *plugins, "-n", "1", tmp_path],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 1 passed" in ran.stdout, ran.stdout
    assert "test_waits - Failed: Timeout" in ran.stdout
    assert "test_spins_with_the_gil - worker 'gw0' crashed" in ran.stdout
