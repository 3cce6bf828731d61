"""Every path that a target of the Makefile runs exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from helpers.paths import ROOT

TARGETS = ("quick", "results", "engines", "soak", "fuzz", "mutants", "peer", "asan", "tsan")


def test_pip_leaves_compiling_to_python() -> None:
    """For an option that says no, a variable turns off what it turns off by being 0."""
    match = re.search(r"^export (PIP_\w+) := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert match is not None
    program = (
        "from pip._internal.commands.install import InstallCommand\n"
        "print(bool(InstallCommand('install', '').parser.get_default_values().compile))"
    )
    environment = {**os.environ, match[1]: match[2]}
    done = subprocess.run(
        (sys.executable, "-c", program), env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("target", TARGETS)
def test_the_paths_of_a_target_exist(target: str) -> None:
    command = ("make", "--dry-run", "--old-file=.venv/.installed", "--old-file=.venv/.torch")
    done = subprocess.run((*command, target), cwd=ROOT, capture_output=True, text=True, check=True)
    named = re.findall(r"(?:^|[\s=])((?:tests|tools)/[\w./-]+)", done.stdout)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
