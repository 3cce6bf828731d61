"""Every path that a target of the Makefile runs exists."""

from __future__ import annotations

import re
import subprocess

import pytest

from helpers.paths import ROOT

TARGETS = ("quick", "engines", "soak", "fuzz", "mutants", "peer", "asan", "tsan")


@pytest.mark.parametrize("target", TARGETS)
def test_the_paths_of_a_target_exist(target: str) -> None:
    command = ("make", "--dry-run", "--old-file=.venv/.installed", "--old-file=.venv/.torch")
    done = subprocess.run((*command, target), cwd=ROOT, capture_output=True, text=True, check=True)
    named = re.findall(r"(?:^|[\s=])((?:tests|tools)/[\w./-]+)", done.stdout)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
