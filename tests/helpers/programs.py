"""Programs that stand in for others' programs."""

from __future__ import annotations

import sys
from pathlib import Path


def write_program(path: Path, body: str) -> Path:
    """Write a program that runs Python lines, with json and sys at hand."""
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    path.chmod(0o755)
    return path
