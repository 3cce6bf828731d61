"""Ending: how `ngramspec serve` leaves: signals, a limit for each part of the end, exit codes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType

from ngramspec.cli.command import EXIT_FAILED, EXIT_INTERRUPTED

NOTE = "closing: running requests may finish; Ctrl-C again leaves at once"
SAME_PRESS = (
    0.5  # seconds; a second SIGINT within it comes from the same Ctrl-C, by way of a parent
)
GRACE = 5.0  # seconds after which the process leaves even if no Python code can run
HANDLED = 128  # marks the number of a signal whose handler has run
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
Part = tuple[str, float]  # of the end, and when it must be over


class Ending:
    """Begins the end at a signal and sees to it that it comes; a context manager.

    SIGTERM, SIGHUP and Ctrl-C mean the same, once. After that another Ctrl-C ends the process at
    once, and further SIGTERM and SIGHUP change nothing. A part of the end that takes too long ends
    the process too, with an exit code that is not 0, after a line that names it and the stacks of
    all threads.

    Threads of its own do this: the main thread may be what hangs.
    """

    def __init__(self) -> None:
        self._parts: SimpleQueue[Part | None] = SimpleQueue()
        self._undo = contextlib.ExitStack()
        self._hanging = ""

    def __enter__(self) -> Ending:
        threading.Thread(target=self._watch, name="ngramspec-end", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.put(None)
        faulthandler.cancel_dump_traceback_later()
        self._undo.close()

    def take_signals(self, stop: Callable[[], None], report: Callable[[], None]) -> None:
        """Handle signals from now on; nothing outside the main thread, where none arrives.

        Args:
            stop: Begins the end; called once, in a thread.
            report: What SIGUSR1 asks for; called in a thread of its own.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        read, write = os.pipe()
        if os.name == "posix":  # Python writes there too, even while the main thread hangs
            os.set_blocking(write, False)
            old = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            self._undo.callback(signal.set_wakeup_fd, old)

        def handle(number: int, _: object) -> None:
            with contextlib.suppress(BlockingIOError):
                os.write(write, bytes([number | HANDLED]))

        for name in (*STOPS, "SIGUSR1"):
            number = getattr(signal, name, None)
            # nohup and the like have SIGHUP ignored, which is to stay so
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._undo.callback(signal.signal, number, signal.signal(number, handle))
        listen = threading.Thread(
            target=_listen, args=(read, stop, report), name="ngramspec-signals", daemon=True
        )
        listen.start()

    def part(self, what: str, seconds: float) -> None:
        """Begin a part of the end: if no other begins within the time, the process leaves."""
        self._parts.put((what, time.monotonic() + seconds))
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=_stderr())

    def hang(self, what: str) -> None:
        """Note that something hangs, so that `leave` must end the process."""
        self._hanging = what

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process if something hangs, for what it works on cannot be freed.

        To be pushed on a stack between what is to be closed first and what then must not be.
        """
        if self._hanging:
            if error is not None:
                _write(f"Error: {error}")
            _leave(self._hanging)

    def _watch(self) -> None:
        part = self._parts.get()
        while part is not None:
            what, deadline = part
            try:
                part = self._parts.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                _leave(f"{what} took too long")


def _listen(read: int, stop: Callable[[], None], report: Callable[[], None]) -> None:
    """Do what signals ask for.

    Each comes twice, from Python's own code and from its handler, but for two cases: a main thread
    that hangs handles nothing, and some event loops take Python's own messages for themselves.
    """
    seen, known, began = [0, 0], 0, 0.0
    while True:
        byte = os.read(read, 1)[0]
        name, handled = signal.Signals(byte & ~HANDLED).name, byte >= HANDLED
        if name not in STOPS:
            if handled:
                threading.Thread(target=report, name="ngramspec-report", daemon=True).start()
            continue
        seen[handled] += 1
        if seen[handled] <= known:
            continue
        known = seen[handled]
        if not began:
            began = time.monotonic()
            _write(NOTE)
            stop()
        elif name == "SIGINT" and time.monotonic() - began > SAME_PRESS:
            os._exit(EXIT_INTERRUPTED)


def _leave(why: str) -> None:
    """End the process with all that hangs in it."""
    _write(f"Error: left without the rest: {why}")
    faulthandler.dump_traceback(file=_stderr())
    os._exit(EXIT_FAILED)


def _write(line: str) -> None:
    """Write a line to stderr without its locks, which a thread that hangs may hold."""
    with contextlib.suppress(OSError):
        os.write(_stderr(), f"{line}\n".encode())


def _stderr() -> int:
    """Return the file descriptor of stderr."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ else 2
    except (OSError, ValueError):  # it is closed, or no file
        return 2
