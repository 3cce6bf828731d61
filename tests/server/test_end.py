"""The end of the command: signals, and what it does when something hangs or has failed."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers import forked
from helpers.command import ROOT, Process
from helpers.forked import Forked
from helpers.serving import wait_until
from ngramspec.server.http.shutdown import HANDLED, Shutdown, _listen

Spawn = Callable[..., Process]
LONG = {"prompt": "x", "n_predict": -1, "ignore_eos": True, "cache_prompt": False}
FAULTY = (str(ROOT / "tests/helpers/faulty_server.py"),)
needs_sighup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP")


class Faulty:
    """A server whose faults can be switched on, and requests to it in the background."""

    def __init__(self, spawn: Spawn, folder: Path, *arguments: str) -> None:
        self.folder = folder / "faults"
        self.folder.mkdir()
        self.learned = folder / "learned.ngc"
        options = ("-np", "1", "--slots", "--drain-timeout", "0.3", "-lcd", str(self.learned))
        drafts = ("--spec-type", "ngram-cache", "--policy", "fixed")
        self.server = spawn(
            *options, *drafts, *arguments, program=FAULTY, NGRAMSPEC_FAULTS=str(self.folder)
        )
        self.url = self.server.url()
        # One for all threads, without certificates, which take longer than most answers.
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=False)
        self.answers: list[httpx.Response] = []
        self._threads: list[threading.Thread] = []

    def post(self, path: str = "/completion", **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def learn(self) -> None:
        """Let the drafter learn something that is to be saved."""
        assert self.post(prompt="def area(a, b):", n_predict=20).status_code == 200

    def begin(self, **body: Any) -> None:
        """Ask in the background."""

        def ask() -> None:
            self.answers.append(self.post(**{**LONG, **body}))

        self._threads.append(threading.Thread(target=ask))
        self._threads[-1].start()

    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.client.get("/slots").json())

    def switch_on(self, fault: str) -> None:
        (self.folder / fault).touch()

    def messages(self) -> list[str]:
        """Return what the requests in the background were told, all of them with 503."""
        for thread in self._threads:
            thread.join(30)
        assert [answer.status_code for answer in self.answers] == [503] * len(self._threads)
        return [answer.json()["error"]["message"] for answer in self.answers]


@pytest.fixture
def faulty(spawn: Spawn, tmp_path: Path) -> Iterator[Callable[..., Faulty]]:
    with contextlib.ExitStack() as stack:

        def faulty(*arguments: str) -> Faulty:
            rig = Faulty(spawn, tmp_path, *arguments)
            stack.callback(rig.client.close)
            return rig

        yield faulty


def test_a_decode_that_hangs_is_told_and_ends_the_process(faulty: Any) -> None:
    rig = faulty("--stall-timeout", "1.5")
    rig.learn()
    assert rig.client.get("/health").json() == {"status": "ok"}
    rig.begin()
    rig.begin()  # it waits for the slot
    wait_until(rig.busy)
    rig.switch_on("decode")
    seen: list[httpx.Response] = []

    def unwell() -> bool:
        seen.append(rig.client.get("/health"))
        return seen[-1].status_code == 503

    wait_until(unwell)
    assert "a step of the engine hangs" in seen[-1].json()["error"]["message"]
    assert "hangs" in rig.post(**LONG).json()["error"]["message"]  # nobody waits for it
    assert all("hangs" in message for message in rig.messages())
    assert rig.server.wait() == 1
    assert "the server ends: a step of the engine hangs" in rig.server.text
    assert "shutdown was complete: a step of the engine does not end" in rig.server.text
    assert 'faulty_server.py", line' in rig.server.text  # where it hangs
    assert rig.learned.stat().st_size > 1000


def test_an_engine_that_dies_is_told_and_ends_the_process(faulty: Any) -> None:
    rig = faulty("--metrics")
    rig.learn()
    rig.begin()
    wait_until(rig.busy)
    rig.begin()
    wait_until(lambda: "requests_deferred 1.0\n" in rig.client.get("/metrics").text)
    rig.switch_on("fail")
    assert all("has ended: ZeroDivisionError" in message for message in rig.messages())
    assert rig.server.wait() == 1
    assert "Error: the engine's thread has ended: ZeroDivisionError" in rig.server.text
    assert rig.learned.stat().st_size > 1000


@pytest.mark.parametrize("fault", ["decode", "prepare"])
def test_the_end_comes_and_saves_although_something_hangs(
    faulty: Any, tmp_path: Path, fault: str
) -> None:
    log = tmp_path / "server.log"
    rig = faulty("--log-file", str(log))
    rig.learn()
    rig.switch_on(fault)
    rig.begin()
    wait_until((rig.folder / "hangs").exists)
    assert rig.server.end() == 1
    why = "Error: exited before the shutdown was complete: "
    assert why in rig.server.text
    assert f"ERROR ngramspec.told: {why}" in log.read_text()
    assert rig.learned.stat().st_size > 1000


def test_a_save_that_hangs_does_not_hold_up_the_end(faulty: Any) -> None:
    rig = faulty()
    rig.learn()
    rig.switch_on("save")
    assert rig.server.end() == 1
    assert "shutdown was complete: saving what was learned took too long" in rig.server.text
    assert "in new_file" in rig.server.text


def test_what_was_learned_is_saved_before_requests_are_waited_for(
    spawn: Spawn, tmp_path: Path
) -> None:
    """So a supervisor that loses patience and kills it loses nothing of that."""
    learned = tmp_path / "learned.ngc"
    drafts = ("--spec-type", "ngram-cache", "--policy", "fixed", "-lcd", str(learned))
    server = spawn("-np", "1", "--context-shift", "--drain-timeout", "600", *drafts)
    url = server.url()
    body = {"prompt": "def area(a, b):", "n_predict": 20}
    httpx.post(f"{url}/completion", json=body, timeout=60).raise_for_status()
    body = {**LONG, "stream": True, "temperature": 1.5}  # without end, as the context shifts
    with httpx.stream("POST", f"{url}/completion", json=body, timeout=60) as stream:
        lines = stream.iter_lines()  # an iterator that goes away ends the connection
        next(lines)
        assert not learned.exists()
        server.process.send_signal(signal.SIGTERM)
        wait_until(learned.exists)
        assert server.process.poll() is None
        server.process.kill()
    assert learned.stat().st_size > 1000


@needs_sighup
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_these_signals_save_as_sigterm_does(spawn: Spawn, tmp_path: Path, name: str) -> None:
    learned = tmp_path / "learned.ngc"
    server = spawn("--spec-type", "ngram-cache", "--policy", "fixed", "-lcd", str(learned))
    body = {"prompt": "def area(a, b):", "n_predict": 20}
    httpx.post(f"{server.url()}/completion", json=body, timeout=60).raise_for_status()
    assert not learned.exists()
    assert server.end(getattr(signal, name)) == 0
    assert "running requests can finish" in server.text
    assert learned.stat().st_size > 1000


@needs_sighup
def test_an_ignored_sighup_stays_ignored(spawn: Spawn) -> None:
    server = spawn(ignoring=signal.SIGHUP)
    url = server.url()
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert httpx.get(f"{url}/health").status_code == 200
    assert server.end() == 0


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_another_ctrl_c_leaves_at_once(spawn: Spawn, first: str) -> None:
    server = spawn("-np", "1", "--slots", "--drain-timeout", "600")
    url = server.url()
    body = {**LONG, "stream": True, "t_max_predict_ms": 100_000, "temperature": 1.5}
    with httpx.stream("POST", f"{url}/completion", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.process.send_signal(getattr(signal, first))
        wait_until(lambda: "Ctrl-C again" in server.text)
        server.process.send_signal(signal.SIGINT)  # within one press
        time.sleep(0.7)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 130


def test_the_end_comes_even_if_no_python_can_run() -> None:
    program = (
        "import ctypes\n"
        "from ngramspec.server.http import shutdown as serve_end\n"
        "serve_end.GRACE = 0.2\n"
        "with serve_end.Shutdown() as ending:\n"
        "    ending.part('a test', 0.2)\n"
        "    ctypes.PyDLL(None).sleep(60)  # holds the lock of the interpreter\n"
    )
    done = forked.run(["-c", program])
    assert done.returncode == 1
    assert "Timeout" in done.stderr


def test_signals_are_handled_while_the_main_thread_hangs() -> None:
    program = (
        "import hashlib\n"
        "from ngramspec.server.http.shutdown import Shutdown\n"
        "with Shutdown() as ending:\n"
        "    ending.take_signals(lambda: None, lambda: None)\n"
        "    print('here', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # for minutes, in one call\n"
    )
    with Forked(["-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"here\n"
            process.send_signal(signal.SIGTERM)
            assert b"Ctrl-C again" in process.stderr.readline()
            time.sleep(0.7)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()


def test_the_end_begins_and_comes_although_nobody_reads_stderr() -> None:
    program = (
        "import threading\n"
        "from ngramspec.server.http.shutdown import Shutdown\n"
        "stopped = threading.Event()\n"
        "with Shutdown() as ending:\n"
        "    ending.take_signals(stopped.set, lambda: None)\n"
        "    print('here', flush=True)\n"
        "    stopped.wait()\n"
        "    ending.part('a test', 0.1)\n"
        "    threading.Event().wait()  # for ever\n"
    )
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:  # until it is full
            os.write(write, b"." * 4096)
    os.set_blocking(write, True)
    with (
        open(read, "rb"),
        open(write, "wb") as stderr,
        Forked(["-c", program], stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 1
        finally:
            process.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no SIGUSR1")
def test_the_end_begins_without_memory_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the watchdog nor a report that cannot start keeps SIGTERM from ending the server."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    stopped = threading.Event()
    read, write = os.pipe()
    listening = threading.Thread(target=_listen, args=(read, stopped.set, fail, fail))
    with Shutdown() as ending:
        listening.start()
        monkeypatch.setattr(threading.Thread, "start", fail)
        monkeypatch.setattr(faulthandler, "dump_traceback_later", fail)
        ending.part("a test", 1000)
        os.write(write, bytes([signal.SIGUSR1 | HANDLED, signal.SIGTERM]))
        assert stopped.wait(60)
    os.close(write)
    listening.join()
    os.close(read)
