"""build-cache: Ctrl-C, kill and going on; two builds of one file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import BY_JSONL, FEW, NO_TOKENIZER, assert_one_error, bytes_of
from helpers.forked import Forked
from ngramspec.errors import CapacityError
from ngramspec.lab.builder import Resources

pytestmark = pytest.mark.usefixtures("empty_folder")

STOPPING = "stopping at the next document; Ctrl-C again quits at once"
TOO_LATE = "all input is read, finishing the file; Ctrl-C again quits at once"


class Running:
    """A build that reads jsonl from a pipe, so that it is never done before it is told."""

    def __init__(self, *arguments: str) -> None:
        command = ["-m", "ngramspec", "build-cache", *BY_JSONL, "-o", "out.ngc", *arguments]
        pipe = subprocess.PIPE
        self.process = Forked(command, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.stdin, self.stderr = self.process.stdin, self.process.stderr
        assert self.stderr.readline().startswith(NO_TOKENIZER.encode())  # Ctrl-C is handled now

    def write(self, lines: list[str]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has stopped already
            self.stdin.write("".join(lines).encode())
            self.stdin.flush()

    def wait_for(self, name: str) -> None:
        """Wait until there is a file."""
        deadline = time.monotonic() + 30
        while not Path(name).exists():
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.005)

    def press(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """Wait for the end and return what else it wrote to stderr."""
        _, stderr = self.process.communicate(timeout=60)
        return stderr.decode()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Return a function that starts such a build; none outlives the test."""
    started: list[Running] = []

    def run(*arguments: str) -> Running:
        started.append(Running(*arguments))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        with running.process:  # closes the pipes
            pass


def go_on(invoke: Any, lines: list[str], *options: str) -> Any:
    return invoke("build-cache", *BY_JSONL, "-o", "out.ngc", *options, stdin="".join(lines))


def test_ctrl_c_and_resume(invoke: Any, start: Any, lines: list[str], uninterrupted: bytes) -> None:
    run = start()
    run.write(lines[:300])
    run.press()
    assert run.stderr.readline().decode() == f"{STOPPING}\n"
    run.write(lines[300:400])
    stderr = run.end()
    assert run.process.returncode == 130
    assert re.fullmatch(
        r"stopped after \d+ documents; run the same command with --resume to continue\n", stderr
    )
    assert os.listdir() == [".out.ngc.build"]

    again = go_on(invoke, lines)
    assert again.exit_code == 2
    assert "holds an unfinished build: --resume continues it, --restart starts" in again.stderr
    other = go_on(invoke, lines, "--resume", "--ngram-max", "3")
    assert other.exit_code == 2
    assert "has another ngram_max: 4, not 3; --restart starts over" in other.stderr

    done = go_on(invoke, lines, "--resume")
    assert done.exit_code == 0, done.stderr
    assert "not counting earlier runs" in done.stdout
    assert bytes_of() == uninterrupted
    assert os.listdir() == ["out.ngc"]


def test_kill_and_resume(invoke: Any, start: Any, lines: list[str], uninterrupted: bytes) -> None:
    run = start("--memory", "64M", "-j", "2")
    run.write(lines)
    run.wait_for(".out.ngc.build/state.json")  # there is more text than fits into the memory
    run.process.kill()
    run.end()
    assert run.process.returncode == -signal.SIGKILL
    done = go_on(invoke, lines, "--resume", "-j", "1")
    assert done.exit_code == 0, done.stderr
    assert bytes_of() == uninterrupted
    assert os.listdir() == ["out.ngc"]


def test_second_ctrl_c_ends_at_once(start: Any) -> None:
    run = start()
    run.wait_for(".out.ngc.build/digests")  # it waits for text now
    run.press()
    assert run.stderr.readline().decode() == f"{STOPPING}\n"
    run.press()
    assert run.end() == "ended; nothing was kept\n"
    assert run.process.returncode == 130
    assert os.listdir() == []


def test_restart_forgets_and_leaves_files_of_others(
    invoke: Any, start: Any, lines: list[str]
) -> None:
    run = start("--work", "scratch")
    run.press()
    run.write(lines[:5])
    run.end()
    assert run.process.returncode == 130
    folder = Path(Resources(work="scratch").work_folder("out.ngc"))
    assert (folder / "state.json").is_file()
    (folder / "state.json").write_text("{")
    (folder / "mine.txt").write_text("mine")
    damaged = go_on(invoke, lines, "--work", "scratch", "--resume")
    assert damaged.exit_code == 1
    assert "state.json: not a checkpoint of this version: --restart starts over" in damaged.stderr
    done = go_on(invoke, lines[:9], "--work", "scratch", "--restart")
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_resume_without_an_unfinished_build_begins(build: Any) -> None:
    build(*FEW)
    first = bytes_of()
    build(*FEW, "--resume")
    assert bytes_of() == first


def test_what_is_too_much_for_a_file_is_counted_once(
    invoke: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(*FEW, "--min-count", "2")
    expected = bytes_of()

    def too_many(*_: Any) -> None:
        raise CapacityError("more 4-grams than a file can hold: raise min_count")

    with monkeypatch.context() as patched:  # the limit is 2 ** 32
        patched.setattr("ngramspec.lab.builder.finish.write_output", too_many)
        result = invoke("build-cache", *FEW, "-o", "out.ngc")
    message = "raise min_count; what was counted is kept: give --resume and a larger --min-count"
    assert_one_error(result, message, 1)
    again = build(*FEW, "--resume", "--min-count", "2")
    assert again["seconds"]["tokenising"] == 0
    assert bytes_of() == expected


def test_another_process_at_the_same_output(start: Any, invoke: Any) -> None:
    run = start()
    run.wait_for(".out.ngc.build/digests")
    result = invoke("build-cache", *FEW, "-o", "out.ngc")
    assert_one_error(result, "another process is building in .out.ngc.build", 2)
    run.write(['{"text": "one two three four five"}\n'])
    run.end()
    assert run.process.returncode == 0


def test_interrupt_outside_the_main_thread_is_left_alone() -> None:
    import threading

    from ngramspec.cli.command import interruptible

    before, seen = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with interruptible("note") as interrupt:
            seen.append((signal.getsignal(signal.SIGINT), interrupt.requested))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
    with interruptible("note"):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_once_all_is_read_lets_the_file_be_finished(capfd: Any) -> None:
    from ngramspec.cli.command import Interrupt
    from ngramspec.cli.progress import BuildProgress

    interrupt = Interrupt(STOPPING)
    progress = BuildProgress(interrupt, None)
    progress.phase("reading", 9)
    assert not progress.stopped
    progress.phase("writing", 0)
    interrupt.press()
    assert progress.stopped
    assert capfd.readouterr().err == f"{TOO_LATE}\n"


@pytest.mark.parametrize(
    ("kind", "late"), [("ngram-cache", {"measuring"}), ("suffix", {"writing", "measuring"})]
)
def test_ctrl_c_on_ray_says_whether_it_stops_the_build(kind: str, late: set[str]) -> None:
    from ngramspec.cli.build_cache import finishing
    from ngramspec.cli.command import Interrupt
    from ngramspec.cli.progress import BuildProgress

    interrupt = Interrupt(STOPPING)
    progress = BuildProgress(interrupt, None, finishing(kind, is_ray=True))
    for name in ("finding duplicates", "reading", "writing", "measuring"):
        progress.phase(name, 0)
        assert interrupt.note == (TOO_LATE if name in late else STOPPING), name
