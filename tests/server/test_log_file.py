"""--log-file: all that the server tells, in one file that may be moved away while it runs."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from helpers.cli import assert_one_error, invoke
from helpers.command import Process
from helpers.serving import wait_until
from ngramspec.cli.output import TELLER, tell

Spawn = Callable[..., Process]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


def lines_of(path: Path, level: str = "INFO") -> list[str]:
    """Return what a file has of the lines that go to stderr as they are."""
    lines = re.findall(rf"^{TIME} {level} ngramspec\.told: (.*)$", path.read_text(), re.M)
    return [str(line) for line in lines]


def test_the_file_has_what_the_terminal_shows(
    spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # a line tells of costs that are saved
    path, moved = tmp_path / "server.log", tmp_path / "server.log.1"
    options = ("-np", "2", "-c", "512", "--calibrate", "0")
    server = spawn(*options, "--log-file", str(path), "--log-level", "warning")
    server.url()
    wait_until(lambda: "listening on" in path.read_text())
    starts = lines_of(path)
    assert [line.split()[0] for line in starts] == [
        *("loading", "model", "memory:", "drafters", "listening")
    ]
    for line in starts:
        assert line in server.lines  # bare, whatever the level
    path.rename(moved)  # as logrotate does
    server.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: path.exists() and "draft acceptance = " in path.read_text())
    assert lines_of(path)[0].startswith("requests = 0, prompt tokens = 0")
    assert server.end() == 0
    assert lines_of(moved) == starts
    assert any(
        line.startswith("shutting down: running requests can finish") for line in lines_of(path)
    )
    assert path.read_text().count("draft acceptance = ") == 2
    assert not re.search(TIME, server.text)  # nothing was logged that is not told


def test_lines_about_requests_are_in_it(spawn: Spawn, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    server = spawn("-np", "1", "-c", "512", LLAMA_ARG_LOG_FILE=str(path))
    body = {"prompt": "x", "n_predict": 3, "ignore_eos": True}
    reply = httpx.post(f"{server.url()}/completion", json=body, timeout=60)
    line = f"request {reply.headers['x-request-id']}: length, "
    assert server.end() == 0
    for text in (server.text, path.read_text()):
        assert re.search(rf"^{TIME} INFO ngramspec\.server\.bridge\.answer: {line}", text, re.M)


def test_a_file_that_cannot_be_begun_anew_ends_no_request(spawn: Spawn, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    server = spawn("-np", "1", "-c", "512", "--log-file", str(folder / "server.log"))
    url = server.url()
    shutil.rmtree(folder)
    for _ in range(2):
        reply = httpx.post(f"{url}/completion", json={"prompt": "x", "n_predict": 2}, timeout=60)
        assert reply.status_code == 200
    assert server.end() == 0
    assert server.text.count(f"the log is not written to {folder}") == 1
    assert "Traceback" not in server.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_once_and_the_server_ends_as_others_do(spawn: Spawn) -> None:
    server = spawn("-np", "1", "-c", "512", "--log-file", "/dev/full")
    assert httpx.get(f"{server.url()}/health").status_code == 200
    assert server.end() == 0
    assert server.text.count("the log is not written to /dev/full: [Errno 28]") == 1
    assert "Traceback" not in server.text


def test_errors_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    before = [*TELLER.handlers]
    wrong = ("--port", "0", "--model", "no-such.gguf", "--log-file", str(path))
    result = invoke("serve", *wrong)
    assert_one_error(result, "no-such.gguf: No such file", 2)
    assert result.stderr == f"{lines_of(path, 'ERROR')[0]}\n"
    assert "loading" not in result.stderr
    assert TELLER.handlers == before  # the next command writes to no file


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    wrong = ("--port", "0", "--log-file", str(tmp_path / "none" / "server.log"))
    result = invoke("serve", *wrong)
    assert_one_error(result, "server.log: No such file", 2)


def test_lines_are_written_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    tell("100 %s of it\nand {more}")
    assert capfd.readouterr().err == "100 %s of it\nand {more}\n"


class Unread:
    """A server whose stderr, a full pipe, nobody reads. Its log has a line per HTTP request."""

    NUMBER = 100

    def __init__(self, spawn: Spawn, folder: Path) -> None:
        self.log = folder / "server.log"
        path = folder / "server.sock"
        options = ("-np", "1", "-c", "512", "--access-log", "--log-file", str(self.log))
        self.server = spawn("--host", str(path), *options, reading=False)
        wait_until(lambda: self.log.exists() and "listening on" in self.log.read_text())
        transport = httpx.HTTPTransport(uds=str(path))
        self.client = httpx.Client(transport=transport, base_url="http://x", timeout=60)
        for number in range(self.NUMBER):  # 200 kB; a pipe holds 64 KiB
            assert self.client.get(f"/health?{'x' * 2000}{number}").status_code == 200

    def count(self, text: str) -> int:
        """Return how many of the lines a text has, in order."""
        numbers = [
            int(one) for one in re.findall(r'"GET /health\?x+(\d+) HTTP/1.1" 200$', text, re.M)
        ]
        assert numbers == list(range(len(numbers)))
        return len(numbers)


@pytest.fixture
def unread(spawn: Spawn, tmp_path: Path) -> Iterator[Unread]:
    unread = Unread(spawn, tmp_path)
    with contextlib.closing(unread.client):
        yield unread


def test_answers_and_the_file_do_not_wait_for_who_reads_stderr(unread: Unread) -> None:
    server, body = unread.server, {"prompt": "x", "n_predict": 2}
    reply = unread.client.post("/completion", json=body)
    line = f"request {reply.headers['x-request-id']}: "
    wait_until(lambda: line in unread.log.read_text())
    server.read()
    wait_until(lambda: line in server.text)
    assert server.end() == 0
    assert server.text.count("draft acceptance = ") == 1
    for text in (server.text, unread.log.read_text()):
        assert unread.count(text) == unread.NUMBER
        assert "as nobody read" not in text  # what was dropped


def test_a_server_whose_stderr_nobody_reads_ends_as_others_do(unread: Unread) -> None:
    assert unread.server.end() == 0
    text = unread.log.read_text()
    assert unread.count(text) == unread.NUMBER
    assert text.count("draft acceptance = ") == 1
    unread.server.read()  # what the pipe held
    assert unread.server.wait() == 0
    assert 0 < unread.count(unread.server.text) < unread.NUMBER
