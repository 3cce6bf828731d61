"""setup.py builds only where it is the program, with as many processes as every system can have."""

from __future__ import annotations

import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.paths import ROOT


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what Cython and setuptools are asked for, which do nothing here."""
    seen: list[dict[str, Any]] = []

    def take(*_: Any, **settings: Any) -> list[Any]:
        seen.append(settings)
        return []

    build = SimpleNamespace(cythonize=take)
    monkeypatch.setitem(sys.modules, "Cython", SimpleNamespace(Build=build))
    monkeypatch.setitem(sys.modules, "Cython.Build", build)
    tools = SimpleNamespace(Extension=lambda *_, **__: None, setup=take)
    monkeypatch.setitem(sys.modules, "setuptools", tools)
    monkeypatch.setattr(sys, "argv", ["setup.py", "build_ext"])
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.chdir(ROOT)
    return seen


def test_a_process_of_the_build_builds_nothing_itself(built: list[dict[str, Any]]) -> None:
    """Where processes are not forked, each runs the file again, under another name."""
    runpy.run_path("setup.py", run_name="__mp_main__")
    assert built == []


def test_large_machines_build_with_61_processes(built: list[dict[str, Any]]) -> None:
    runpy.run_path("setup.py", run_name="__main__")
    cython, setup = built
    assert cython["nthreads"] == setup["options"]["build_ext"]["parallel"] == 61
