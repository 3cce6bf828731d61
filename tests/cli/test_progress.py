"""What commands say while they work: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from helpers import cli
from helpers.cli import CODE, FEW, succeed
from helpers.paths import BENCHMARK_DATA
from helpers.terminal import on_terminal
from ngramspec.cli import progress

pytestmark = pytest.mark.usefixtures("empty_folder")

TRACES = BENCHMARK_DATA / "traces"
TINY = ("generate", "-m", "llama.gguf", "--raw")
COMMANDS = {
    "build-cache": (["build-cache", CODE, "-o", "new.ngc"], r"(reading: \d+% of|writing:)"),
    "merge": (["cache", "merge", "a.ngc", "b.ngc", "-o", "new.ngc"], r"merging: [\d,]+ of [\d,]+,"),
    "prune": (["cache", "prune", "a.ngc", "-o", "new.ngc", "--max-size", "100K"], "pruning: "),
    "verify": (["cache", "verify", "a.ngc", "b.ngc"], r"checking a.ngc: 0 of 2, "),
    "convert": (["cache", "convert", "a.ngc", "a.bin"], "converting: "),
    "exactness": (
        ["bench", "exactness", "-m", "llama.gguf", "--tokens", "72", "-t", "1", "-fa", "on"],
        r"1 thread, .*: \d+ of [\d,]+, ",
    ),
    "e2e": (["bench", "e2e", "-n", "8", "--repeats", "1", "--drafter", "ngram-mod"], r": \d of \d"),
    "calibrate": (
        ["bench", "calibrate", "--rounds", "1", "-o", "costs.json", "--max-batch", "4"],
        r"measuring: \d+ of \d+",
    ),
    "check": (["check", "--seconds", "1"], r"timing passes: \d of 1, "),
    "exact": ([*TINY, "-p", "x", "-n", "1", "-b", "8", "--exact"], r"testing: \d"),
    "demo": (["demo", "--repeats", "1", "-n", "8", "--task", "rename"], r": \d+ of \d+, "),
    "replay": (["bench", "replay", TRACES, "--limit", "2"], r"replaying: \d+ of \d+, "),
}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a line every few milliseconds."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.003)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two statistics files and a model that is quick to test."""
    pytest.importorskip("gguf")
    from helpers.gguf_models import build

    folder = tmp_path_factory.mktemp("built")
    build("llama", folder)
    for corpus, name in ((CODE, "a.ngc"), (FEW[0], "b.ngc")):
        result = cli.invoke("build-cache", corpus, "-o", folder / name)
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def files(empty_folder: Path, built: Path) -> None:
    for path in built.iterdir():
        shutil.copy(path, empty_folder)


def test_a_line_comes_while_a_long_step_runs(capsys: Any, often: None) -> None:
    def comes(line: str) -> bool:
        """Wait for a line with a time behind it; lines of what was before may come first."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.01)
            captured = capsys.readouterr()
            assert captured.out == ""
            if re.search(rf"^{line}\d+\.\d s$", captured.err, re.MULTILINE):
                return True
        return False

    with progress.progress("measuring", 1_200) as steps:
        assert comes("measuring: 0 of 1,200, ")
        steps()
        assert comes("measuring: 1 of 1,200, ")
        steps.name("measuring more")
        steps(1_000)
        assert comes("measuring more: 1,001 of 1,200, ")
    with progress.progress("comparing"):
        assert comes("comparing: ")


def test_what_is_done_soon_says_nothing(capsys: Any) -> None:
    with progress.progress("measuring", 9) as steps:
        steps()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("often", "files")
def test_every_long_command_tells_how_far_it_is(name: str) -> None:
    arguments, pattern = COMMANDS[name]
    result = succeed(*map(str, arguments), "--json")
    assert re.search(rf"^.*{pattern}", result.stderr, re.MULTILINE), result.stderr
    assert json.loads(result.stdout)


@pytest.mark.usefixtures("often", "files")
def test_no_progress_where_it_is_not_wanted(invoke: Any) -> None:
    result = invoke("build-cache", CODE, "-o", "new.ngc", "--no-progress", "--json")
    assert "reading:" not in result.stderr


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_bar_on_the_terminal_leaves_stdout_alone(options: list[str]) -> None:
    command = ["bench", "e2e", "-n", "8", "--repeats", "1", "--drafter", "ngram-mod", "-t", "1"]
    screen, stdout = on_terminal(*command, *options)
    assert "\x1b" in screen
    assert "\x1b" not in stdout
    if options:
        assert json.loads(stdout)
    else:
        assert "ngram-mod" in stdout
