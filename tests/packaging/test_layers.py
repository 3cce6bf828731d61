"""Imports point one way: errors below the native modules, policy above, adapters on top."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ngramspec"
# Folder or module -> level. A module may import from lower levels and from its own folder.
LEVELS = {
    "errors": 0,
    "stats": 0,
    "_version": 0,
    "models": 0,
    "costs": 1,
    "tree": 1,
    "native": 1,
    "verify": 2,
    "formats": 2,
    "corpus": 2,
    "tokenizers": 2,
    "ollama": 2,
    "drafters": 3,
    "engine": 4,
    "build": 4,
    "adapters": 5,
    "compat": 5,
    "bench": 5,
    "server": 6,
    "cli": 7,
}
NATIVE_LEVELS = {
    "_types": 0,
    "_memory": 0,
    "_branches": 1,
    "_locks": 1,
    "_arguments": 1,
    "_hash": 1,
    "_packing": 1,
    "_history": 1,
    "_table": 1,
    "_adapt": 1,
    "_lines": 1,
    "_calibration": 1,
    "_pass_costs": 1,
    "_auto": 3,
    "_candidate": 2,
    "_flags": 2,
    "_index": 2,
    "_counts": 2,
    "_pool": 2,
    "_sort": 2,
    "_merge": 2,
    "_static": 2,
    "_suffix_pool": 2,
    "_suffix_index": 2,
    "_suffix_seats": 2,
    "_suffix_image": 3,
    "_context": 3,
    "_shared": 3,
    "_records": 4,
    "_source": 3,
    "_match": 3,
    "_tally": 3,
    "_image": 3,
    "_pool_image": 2,
    "_unpack": 3,
    "_prune": 3,
    "_entries": 5,
    "_confidence": 4,
    "_cache": 6,
    "_driver": 5,
    "_suffix_state": 5,
    "_simple": 6,
    "_map": 6,
    "_mod": 6,
    "_lookup": 7,
    "_suffix_draft": 6,
    "_suffix_learn": 6,
    "_slots": 6,
    "_suffix_tree": 7,
    "_trees": 7,
    "_tree_rows": 2,
    "_offers": 7,
    "_suffix": 8,
    "_arctic": 8,
    "_batches": 8,
    "_drafter": 9,
    "_rows": 2,
    "_batch": 2,
    "_sampler": 3,
    "_pieces": 2,
    "_transcript": 3,
    "_verify": 4,
    "_llama_log": 2,
    "_llama": 4,
    "_chain": 5,
    "_figures": 2,
    "_gate": 2,
    "_slot": 7,
    "_plan": 8,
    "_proposer": 9,
    "_verifier": 9,
}


def part_of(name: str) -> str:
    """Return the part of the package that a dotted module name belongs to."""
    first = name.split(".")[1] if "." in name else ""
    return "native" if first.startswith("_") and first not in ("_version", "__main__") else first


def imports(path: Path) -> list[str]:
    """Return the ngramspec modules that a Python file imports anywhere."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith("ngramspec.")]


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_modules_import_downwards_only(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    for name in imports(path):
        part = part_of(name)
        assert part == own or LEVELS[part] < LEVELS[own], f"{path} imports {name}"


def test_native_modules_cimport_downwards_only() -> None:
    sources = sorted((ROOT / "ext" / "ngramspec").glob("*.p*"))
    assert {path.stem for path in sources} == set(NATIVE_LEVELS)
    for path in sources:
        for name in re.findall(r"^from ngramspec\.(_\w+) cimport", path.read_text(), re.M):
            if name != path.stem:
                assert NATIVE_LEVELS[name] < NATIVE_LEVELS[path.stem], f"{path} cimports {name}"


def test_native_modules_import_only_errors_stats_and_costs_from_python() -> None:
    for path in sorted((ROOT / "ext" / "ngramspec").glob("*.pyx")):
        imported = re.findall(r"^from ngramspec\.(\w+) import", path.read_text(), re.M)
        assert set(imported) <= {"errors", "stats", "costs"}, path


def test_llama_cpp_is_imported_inside_functions_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "llama_cpp" for name in names), path
