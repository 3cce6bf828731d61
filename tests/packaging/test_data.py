"""Recorded data and texts are what was recorded: a figure must not change because a file did.

After a change on purpose: python tests/packaging/test_data.py writes the digests anew.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import xxhash

from helpers.paths import ROOT

DIGESTS = Path(__file__).parent / "data_digests.txt"
FOLDERS = ("benchmarks/data", "tests/golden/data", "corpora")


def recorded_files() -> list[Path]:
    """Return all data files, documentation left out."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in paths if path.is_file() and path.suffix != ".md")


def digest(path: Path) -> str:
    """Return the XXH3 digest of what a file holds, unpacked where the packing may differ."""
    data = path.read_bytes()
    return xxhash.xxh3_128_hexdigest(lzma.decompress(data) if path.suffix == ".xz" else data)


def test_every_data_file_is_listed_and_unchanged() -> None:
    listed = dict(line.split("  ")[::-1] for line in DIGESTS.read_text().splitlines())
    present = {str(path.relative_to(ROOT)): digest(path) for path in recorded_files()}
    assert present == listed


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_data_folder_states_origin_and_licence(folder: str) -> None:
    text = (ROOT / folder / "README.md").read_text().lower()
    assert "licence" in text
    assert "origin" in text


if __name__ == "__main__":
    lines = [f"{digest(path)}  {path.relative_to(ROOT)}\n" for path in recorded_files()]
    DIGESTS.write_text("".join(lines))
