"""The line that tells what is being loaded: until that is done, nobody can connect."""

from __future__ import annotations

import re
from pathlib import Path

from ngramspec.cli.output import printable, size_text

_FIRST = re.compile(r"-00001-of-(\d{5})\.gguf$")  # of a split model


def loading_line(path: Path, name: str = "") -> str:
    """Return what is being loaded, and how large its file is, or its files are.

    Args:
        path: A model's file; for a split model, its first.
        name: Of the model, "" = that of the file.

    Raises:
        OSError: A file is not there.
    """
    size = sum(part.stat().st_size for part in _parts(path))
    return f"loading {printable(name or path.name)} ({size_text(size)}) ..."


def _parts(path: Path) -> list[Path]:
    """Return the files of a model."""
    match = _FIRST.search(path.name)
    if match is None:
        return [path]
    stem, count = path.name[: match.start()], match[1]
    return [
        path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)
    ]
