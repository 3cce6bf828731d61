"""Importing the package is light and quick."""

from __future__ import annotations

import statistics
import subprocess
import sys

HEAVY = ("llama_cpp", "click", "rich", "torch", "transformers", "asyncio")


def run(code: str) -> str:
    """Run Python code in a fresh interpreter and return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.strip()


def test_importing_the_package_loads_no_optional_dependency() -> None:
    loaded = run("import sys, ngramspec; print(' '.join(sys.modules))").split()
    assert "numpy" in loaded
    assert not set(HEAVY) & set(loaded)


def test_the_package_adds_less_than_the_time_of_numpy_and_a_tenth_of_a_second() -> None:
    # Relative to numpy in the same process, since machines differ; 100 ms is the documented bound.
    code = (
        "import time; a = time.perf_counter(); import numpy; b = time.perf_counter();"
        "import ngramspec; print((time.perf_counter() - b) / (b - a))"
    )
    assert statistics.median(float(run(code)) for _ in range(5)) < 1.5


def test_every_public_name_exists() -> None:
    import ngramspec

    for name in ngramspec.__all__:
        assert getattr(ngramspec, name) is not None
    assert len(ngramspec.__all__) <= 24


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert run(
        "import ngramspec\ntry:\n ngramspec.nothing\nexcept AttributeError as e: print(e)"
    ) == ("module 'ngramspec' has no attribute 'nothing'")
