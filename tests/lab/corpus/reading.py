"""Reading a corpus to its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ngramspec.lab.corpus import Problems, ReadOptions, find_units, read_documents

Write = Callable[[str, bytes | str], Path]


def read(*paths: str | os.PathLike[str], **options: Any) -> tuple[list[str], Problems]:
    """Return the texts of all documents and the problems; options of both functions."""
    names = ("include", "exclude", "format", "chunk_bytes")
    plan = find_units(paths, **{name: options.pop(name) for name in names if name in options})
    problems = Problems()
    texts = []
    for unit in plan.units:
        position = 0
        for document in read_documents(unit, ReadOptions(**options), problems):
            texts.append(document.text)
            assert position <= document.position
            position = document.position
        assert position <= unit.num_bytes or not unit.num_bytes
    return texts, problems


def messages(problems: Problems) -> list[str]:
    """Return the problems as they are shown."""
    return [str(problem) for problem in problems.first]
