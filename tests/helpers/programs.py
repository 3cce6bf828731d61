"""Programs that stand in for others' programs, and those of this checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def write_program(path: Path, body: str) -> Path:
    """Write a program that runs Python lines, with json and sys at hand."""
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    path.chmod(0o755)
    return path


def load_program(path: Path) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
