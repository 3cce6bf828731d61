"""build-cache on a full disk: which file, what to do, and nothing counted is lost."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import FEW, assert_one_error, bytes_of
from ngramspec.lab.builder.checkpoint import WorkFolder
from ngramspec.lab.builder.local import LocalBuild

pytestmark = pytest.mark.usefixtures("empty_folder")
FOR_A_RUN, FOR_NOTHING = 200_000, 2_000  # a run takes 90 KB, the file 290 KB


@contextmanager
def files_up_to(num_bytes: int) -> Iterator[None]:
    """Let writes beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full(invoke: Any, num_bytes: int, *options: str) -> Any:
    with files_up_to(num_bytes):
        return invoke("build-cache", *FEW, "-o", "out.ngc", "-j", "1", *options)


@pytest.mark.parametrize("kind", ["ngram-cache", "suffix"])
def test_what_was_counted_outlives_a_full_disk(invoke: Any, build: Any, kind: str) -> None:
    build(*FEW, "--kind", kind)
    expected = bytes_of()
    os.remove("out.ngc")
    result = full(invoke, FOR_A_RUN if kind == "ngram-cache" else 50_000, "--kind", kind)
    message = "out.ngc: File too large: make room there, then run the same command with --resume"
    assert_one_error(result, message, 1)
    assert os.listdir() == [".out.ngc.build"]
    again = build(*FEW, "--kind", kind, "--resume")
    assert again["totals"]["documents"] == len(FEW)
    assert bytes_of() == expected
    assert os.listdir() == ["out.ngc"]


def test_an_older_file_stays(invoke: Any, build: Any) -> None:
    build(FEW[0])
    before = bytes_of()
    full(invoke, FOR_A_RUN)
    assert bytes_of() == before


def test_nothing_is_left_where_not_even_the_work_fits(invoke: Any) -> None:
    result = full(invoke, FOR_NOTHING)
    message = (
        "out.ngc: File too large: make room there, or choose another place with -o and --work; "
        "nothing was kept"
    )
    assert_one_error(result, message, 1)
    assert os.listdir() == []


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(
    invoke: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(*FEW)
    expected = bytes_of()
    os.remove("out.ngc")
    add, num_added = LocalBuild._add, 0

    def checkpoint_after_each(self: LocalBuild, parts: list[str], aside: bool) -> None:
        nonlocal num_added
        add(self, parts, aside)
        num_added += 1
        self._checkpoint()

    save = WorkFolder.save

    def save_and_fill(self: WorkFolder, *args: Any) -> None:
        save(self, *args)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FOR_NOTHING, hard))

    with monkeypatch.context() as patched:
        patched.setattr(LocalBuild, "_add", checkpoint_after_each)
        patched.setattr(WorkFolder, "save", save_and_fill)
        result = full(invoke, FOR_A_RUN)
    assert num_added == 2
    assert_one_error(result, ".out.ngc.build/run-", 1)
    assert "File too large: make room there, then run the same command with --resume" in (
        result.stderr
    )
    assert Path(".out.ngc.build/state.json").exists()
    build(*FEW, "--resume")
    assert bytes_of() == expected


def test_other_commands_name_the_file_too(invoke: Any, build: Any) -> None:
    build(*FEW)
    for command in (("merge", "out.ngc", "out.ngc"), ("prune", "out.ngc", "--max-size", "100K")):
        with files_up_to(FOR_NOTHING):
            result = invoke("cache", *command, "-o", "other.ngc")
        assert_one_error(result, "other.ngc: File too large", 1)
        assert os.listdir() == ["out.ngc"]


def test_texts_that_were_half_written_are_cut_off(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work", {})
    work.open(resume=False, restart=False)
    work._append("texts", b"one ")
    with files_up_to(6), pytest.raises(OSError, match="too large"):
        work._append("texts", b"and two")
    work._append("texts", b"two")
    assert (tmp_path / "work/texts").read_bytes() == b"one two"
    work.remove()
