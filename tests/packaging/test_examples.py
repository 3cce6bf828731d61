"""The examples run as they stand, where what they show is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

EXAMPLES = ROOT / "examples"
NEEDS = {"any_model": ("torch", "transformers"), "generate": ("llama_cpp",)}
SAYS = {"any_model": "equal to those without drafts", "generate": "equal: True"}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    for module in NEEDS[name]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the example shows ngramspec with {module}, which is not installed")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
