"""What the reference lists has docstrings, and so has every method and function of it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ngramspec
from helpers.paths import ROOT

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
REFERENCE = "".join(path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md"))
LISTED = re.findall(r"^::: (\S+)$", REFERENCE, re.M)
NATIVE = [name for name in LISTED if "._native." in name]


def source_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next(filter(Path.is_file, (path / "__init__.py", path.with_suffix(".py"))), None)


def definition(name: str) -> ast.AST:
    """Return what defines a module, class, function or constant, followed through imports."""
    if source := source_of(name):
        return ast.parse(source.read_text("utf-8"))
    module, _, own = name.rpartition(".")
    for node in ast.walk(definition(module)):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == own:
            return node
        if isinstance(node, ast.ImportFrom) and own in [alias.name for alias in node.names]:
            return definition(f"{node.module}.{own}")
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and own in ast.unparse(node):
            return node
    raise AssertionError(f"there is no {name}")


def undocumented(node: ast.AST, name: str) -> Iterator[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and not ast.get_docstring(node):
        yield name
    if isinstance(node, (ast.ClassDef, ast.Module)):
        for part in node.body:
            if not isinstance(part, (*FUNCTIONS, ast.ClassDef)) or part.name.startswith("_"):
                continue
            if "overload" not in map(ast.unparse, part.decorator_list):
                yield from undocumented(part, f"{name}.{part.name}")


@pytest.mark.parametrize("name", [name for name in LISTED if name not in NATIVE])
def test_public_names_have_docstrings(name: str) -> None:
    assert not list(undocumented(definition(name), name))


@pytest.mark.parametrize("name", NATIVE)
def test_native_classes_have_docstrings(name: str) -> None:
    module, _, own = name.rpartition(".")
    native = getattr(importlib.import_module(module), own)
    public = [part for part in vars(native) if not part.startswith("_")]
    alone = [part for part in public if not re.search(rf"\b{part}\b", native.__doc__)]
    assert not [part for part in alone if not getattr(native, part).__doc__]


def test_the_reference_lists_the_public_names() -> None:
    own = {name.rpartition(".")[2] for name in LISTED}
    assert set(ngramspec.__all__) - {"__version__"} <= own
