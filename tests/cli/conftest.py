"""Fixtures: the command in this process and as one of its own; the files that it works on."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers import cli, forked
from helpers.cache_files import make_files
from helpers.cli import BY_JSONL, CORPORA, succeed
from helpers.scheduling import same_scheduling


@pytest.fixture(autouse=True)
def priorities(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Keep the priority of this process, which --prio would change; return what was asked for."""
    asked: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda which, who, value: asked.append(value))
    with same_scheduling():
        yield asked


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove llama.cpp's variables but the one by which tests measure no costs."""
    for name in os.environ:
        if name.startswith("LLAMA_") and name != "LLAMA_ARG_CALIBRATE":
            monkeypatch.delenv(name)


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Return a function that runs the command in this process."""
    return cli.invoke


@pytest.fixture
def spawn() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `python -m ngramspec` with pipes, so without a terminal."""

    def run(
        *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return forked.run(["-m", "ngramspec", *arguments], stdin, **environment)

    return run


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def build() -> Callable[..., dict[str, Any]]:
    """Return a function that builds out.ngc and returns what --json says."""

    def run(*arguments: str, out: str = "out.ngc", stdin: str | None = None) -> dict[str, Any]:
        result = succeed("build-cache", *arguments, "-o", out, "--json", stdin=stdin)
        report: dict[str, Any] = json.loads(result.stdout)
        return report

    return run


@pytest.fixture(scope="session")
def lines() -> list[str]:
    """Return records: half of all corpora, and as much again, more than 64M of memory are for."""
    paths = sorted(path for path in CORPORA.rglob("*") if path.suffix in (".py", ".rst"))
    texts = [path.read_text("utf-8") for path in paths]
    pieces = [text[at : at + 2000] for text in texts for at in range(0, len(text), 2000)]
    words = texts[-1].split()
    chance = random.Random(1)
    pieces += [" ".join(chance.choices(words, k=300)) for _ in pieces]
    return [json.dumps({"text": piece}) + "\n" for piece in pieces[::2]]


@pytest.fixture(scope="session")
def text(lines: list[str]) -> str:
    return "".join(lines)


@pytest.fixture(scope="session")
def uninterrupted(text: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of the file that a build of all lines makes."""
    path = tmp_path_factory.mktemp("whole") / "out.ngc"
    result = cli.invoke("build-cache", *BY_JSONL, "-o", path, stdin=text)
    assert result.exit_code == 0, result.output
    return path.read_bytes()


@pytest.fixture(scope="session")
def made_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of statistics files, those of helpers.cache_files."""
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


@pytest.fixture
def cache_files(made_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with copies of the files."""
    for path in made_files.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cache(invoke: Any) -> Callable[..., Any]:
    """Return a function that runs `ngramspec cache` and returns what --json says."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Any:
        result = invoke("cache", *arguments, "--json", stdin=stdin)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run
