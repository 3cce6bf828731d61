"""A variable is named by what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT

# What happened to a value says nothing of it.
VAGUE = {"found", "given", "kept", "known", "made", "said", "told", "wanted"}
IN_FILES = {"ngramspec/lab/recordings/record.py": {"kept"}}  # a member of the records' JSON
FILES = [path for folder in ("ngramspec", "tests") for path in (ROOT / folder).rglob("*.py")]
SOURCES = sorted(path.relative_to(ROOT) for path in FILES)


def names_set(source: Path) -> Iterator[str]:
    """Yield the variables, arguments and fields that a file sets."""
    for node in ast.walk(ast.parse((ROOT / source).read_text("utf-8"))):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_variables_say_what_they_hold(source: Path) -> None:
    assert set(names_set(source)) & VAGUE <= IN_FILES.get(source.as_posix(), set())
