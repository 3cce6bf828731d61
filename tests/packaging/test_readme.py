"""The Python blocks of the README and of two pages of docs run as they stand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

NAMES = ("reference/engine", "how-to/integrations")  # pages whose blocks are programs
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
PAGES = {"README": README, **{name: (DOCS / f"{name}.md").read_text() for name in NAMES}}
BLOCKS = {
    f"{name}-{number}": block
    for name, page in PAGES.items()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M))
}
OPTIONAL = ("torch", "transformers")  # what the tests' own extras do not bring


@pytest.mark.parametrize("name", BLOCKS)
def test_a_python_block_runs(name: str, tmp_path: Path) -> None:
    for module in re.findall(r"^(?:from|import) (\w+)", BLOCKS[name], re.M):
        if module in OPTIONAL and importlib.util.find_spec(module) is None:
            pytest.skip(f"the block shows ngramspec with {module}, which is not installed")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_names_both_commands_and_no_missing_file() -> None:
    assert {"README-1", "how-to/integrations-1"} <= set(BLOCKS)
    assert "make demo" in README
    assert "make test" in README
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
