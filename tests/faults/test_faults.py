"""Every writer of files, with each of its file calls failing, coming short or being its last.

NGRAMSPEC_FAULTS=all injects every fault at every call; otherwise each call gets two of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WRITERS = (
    *(
        "Cache",
        "Pool",
        "NewPool",
        "Index",
        "Slot",
        "Successors",
        "LookupCache",
        "Dynamic",
        "DynamicLookup",
        "Build",
    ),
    *("BuildIndex", "Merge", "MergeSmall", "Prune", "Convert", "ConvertBack"),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("faults are injected by a preloaded library: Linux and a C compiler")
    path = tmp_path_factory.mktemp("faults") / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(HERE / "shim.c"), "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is one: thousands of files are synced."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def run(
    writer: str, folder: Path, library: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-W", "ignore", str(HERE / "program.py"), writer]
    return subprocess.run(
        [*command, str(folder), str(library), *options],
        env={**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=3600,
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_the_old_file_or_the_new_one_is_there_and_nothing_else(
    writer: str, folder: Path, library: Path
) -> None:
    """After the fault, whole; and the new one alone once the writer has run again."""
    if writer.startswith("Build"):
        pytest.importorskip("llama_cpp")  # reads the tokenizer
    how = os.environ.get("NGRAMSPEC_FAULTS", "")
    done = run(writer, folder, library, *([how] if how else []))
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 6  # calls


def test_a_writer_that_is_careless_is_found_out(folder: Path, library: Path) -> None:
    done = run("Careless", folder, library)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert "at call " in done.stderr


def test_what_is_renamed_is_on_disk_before_and_its_name_after(folder: Path, library: Path) -> None:
    done = run("Cache", folder, library, "log")
    place = folder.resolve() / "made"
    calls = [line.split(" ", 1) for line in done.stdout.splitlines()[1:]]
    names = [call for call, _ in calls]
    at = names.index("rename")
    assert calls[at][1] == str(place / "out.ngc")
    assert calls[at - 1][0] == "fsync"
    assert Path(calls[at - 1][1]).name.startswith(".out.ngc.")
    assert "write" not in names[at:]
    assert ["fsync", str(place)] in calls[at:]
