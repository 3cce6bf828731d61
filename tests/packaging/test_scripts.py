"""Programs beside the package name what is there: no test runs those that take long."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from helpers.paths import ROOT

SCRIPTS = sorted(
    path for folder in ("benchmarks", "examples", "tools") for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_program_imports_of_the_package_exists(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("ngramspec"):
            continue
        try:
            module = importlib.import_module(node.module or "")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("ngramspec"):
                raise
            continue  # it needs a package that is not installed
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")


def test_every_planted_fault_has_its_place_and_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "mutants"))
    for fault in importlib.import_module("faults").FAULTS:
        assert (ROOT / fault.path).read_text("utf-8").count(fault.old) == 1, fault.name
        for name in fault.tests:
            assert (ROOT / name.split("::")[0]).exists(), name
