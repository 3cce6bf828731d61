"""Fixtures: what came of building on Ray in many ways, and building without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from ray_jobs import Outcome, jobs_in  # noqa: E402

from ngramspec.files.pool_file import PoolShape  # noqa: E402
from ngramspec.lab.builder import BuildOptions, BuildResult, build  # noqa: E402
from ngramspec.text.tokenizers import load_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Run all jobs in a process of its own."""
    folder = tmp_path_factory.mktemp("ray")
    jobs = jobs_in(folder)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, str(HERE / "program.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fields = json.loads((folder / "outcomes.json").read_text())
    return {name: Outcome(jobs[name], folder / name, **fields[name]) for name in jobs}


@pytest.fixture(scope="session")
def build_here(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], BuildResult]:
    """Return a function that does a job on this machine, without Ray."""

    def build_here(job: dict[str, Any]) -> BuildResult:
        options = dict(job.get("options", {}))
        if "pool" in options:
            options["pool"] = PoolShape(**options["pool"])
        output = tmp_path_factory.mktemp("local") / "file"
        tokenizer = load_tokenizer(job["tokenizer"])
        return build(job["paths"], output, tokenizer, BuildOptions(**options))

    return build_here
