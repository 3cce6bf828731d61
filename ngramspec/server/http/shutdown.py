"""Shutdown: signals, a limit for each part of it, exit codes.

Threads write to stderr without waiting for Python's locks, nor always for its reader.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType

NOTE = "shutting down: running requests can finish; Ctrl-C again quits at once"
SAME_PRESS = 0.5  # seconds; a second SIGINT within it is the same Ctrl-C, from a parent process
GRACE = 5.0  # further seconds after which the process exits even if no Python code can run
NOTE_SECONDS = 1.0  # how long a process that leaves waits for its log
READER_SECONDS = 0.5  # how long the reader of stderr is waited for: the end comes without it
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # as a shell has it for SIGINT
HANDLED = 128  # added to the number of a signal whose handler has run
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
Part = tuple[str, float]  # name of a part of the shutdown, and its deadline
# What fits into a pipe that is ready, so that writing it does not wait.
CHUNK = getattr(select, "PIPE_BUF", 512)


class Shutdown:
    """Starts the shutdown at a signal and makes sure that it ends; a context manager.

    The first SIGTERM, SIGHUP or Ctrl-C starts it. After that another Ctrl-C ends the process at
    once, and further SIGTERM and SIGHUP change nothing. If a part of the shutdown takes too long,
    the process prints a line that names it and the stacks of all threads, and exits with a code
    that is not 0.

    Its own threads do this, because the main thread may be the one that hangs.

    note: Gets the lines that were written to stderr, for a log; called in threads of its own, as
        its disk may hang.
    """

    def __init__(self, note: Callable[[str], None] = lambda line: None) -> None:
        self._note = note
        self._parts: SimpleQueue[Part | None] = SimpleQueue()
        self._undo = contextlib.ExitStack()
        self._hanging = ""

    def __enter__(self) -> Shutdown:
        threading.Thread(target=self._watch, name="ngramspec-end", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.put(None)
        faulthandler.cancel_dump_traceback_later()
        self._undo.close()

    def take_signals(self, stop: Callable[[], None], report: Callable[[], None]) -> None:
        """Handle signals from now on; outside the main thread do nothing.

        Args:
            stop: Starts the shutdown; called once, in a thread.
            report: Called at SIGUSR1, in a thread of its own.
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
            # nohup and the like ignore SIGHUP: keep that
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._undo.callback(signal.signal, number, signal.signal(number, handle))
        listen = threading.Thread(
            target=_listen,
            args=(read, stop, report, self._note),
            name="ngramspec-signals",
            daemon=True,
        )
        listen.start()

    def part(self, what: str, seconds: float) -> None:
        """Begin a part of the shutdown: if no other begins within the time, the process exits."""
        self._parts.put((what, time.monotonic() + seconds))
        with contextlib.suppress(RuntimeError):  # no memory for its thread: `_watch` is left
            faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr_number())

    def hang(self, what: str) -> None:
        """Note that something hangs, so that `leave` must end the process."""
        self._hanging = what

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process if something hangs: what it still uses must not be freed.

        Push it on an ExitStack after what must not be freed then, and before the rest.
        """
        if self._hanging:
            if error is not None:
                _write(f"Error: {error}")
                _start(self._note, f"Error: {error}")
            leave_at_once(self._hanging, self._note)

    def _watch(self) -> None:
        part = self._parts.get()
        while part is not None:
            what, deadline = part
            try:
                part = self._parts.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                leave_at_once(f"{what} took too long", self._note)


def _listen(
    read: int,
    stop: Callable[[], None],
    report: Callable[[], None],
    note: Callable[[str], None],
) -> None:
    """Act on signals.

    Each arrives twice, from Python's wakeup descriptor and from its handler, with two exceptions: a
    main thread that hangs runs no handler, and some event loops take over the wakeup descriptor.
    """
    seen, num_signals, began = [0, 0], 0, 0.0
    while data := os.read(read, 1):
        byte = data[0]
        name, handled = signal.Signals(byte & ~HANDLED).name, byte >= HANDLED
        if name not in STOPS:
            if handled:
                _start(report)
            continue
        seen[handled] += 1
        if seen[handled] <= num_signals:
            continue
        num_signals = seen[handled]
        if not began:
            began = time.monotonic()
            _write(NOTE)
            stop()
            _start(note, NOTE)
        elif name == "SIGINT" and time.monotonic() - began > SAME_PRESS:
            os._exit(EXIT_INTERRUPTED)


def leave_at_once(why: str, note: Callable[[str], None] = lambda line: None) -> None:
    """End the process, with all threads that hang in it.

    Args:
        why: For stderr and the log.
        note: As Shutdown has it.
    """
    line = f"Error: exited before the shutdown was complete: {why}"
    _write(line)
    _write_stacks()
    noting = _start(note, line)
    if noting is not None:
        noting.join(NOTE_SECONDS)
    os._exit(EXIT_FAILED)


def _start(work: Callable[..., None], *arguments: str) -> threading.Thread | None:
    """Do something in a thread that nobody waits for; None if there is no memory for it."""
    thread = threading.Thread(target=work, args=arguments, name="ngramspec-report", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _write(line: str) -> None:
    """Write a line to stderr, if it is read."""
    write_stderr(f"{line}\n", READER_SECONDS)


def _write_stacks() -> None:
    """Write the stacks of all threads to stderr, if it is read.

    They pass a pipe: faulthandler lets no Python code run until all is written.
    """
    if os.name != "posix":
        faulthandler.dump_traceback(file=stderr_number())
        return
    with contextlib.suppress(OSError):
        read, write = os.pipe()
        os.set_blocking(write, False)  # what does not fit is left out
        faulthandler.dump_traceback(file=write)
        os.close(write)
        with open(read, "rb") as stacks:
            write_stderr(stacks.read().decode("utf-8", "replace"), READER_SECONDS)


def write_stderr(text: str, seconds: float | None = None) -> None:
    """Write a text to stderr, as far as somebody reads it.

    sys.stderr has a lock, which a thread that hangs may hold, and without which the interpreter
    cannot end. Nothing of that is used here.

    Args:
        text: In whole lines.
        seconds: How long to wait for a reader that does not read; None: for ever. Only POSIX
            systems tell, others wait for ever.
    """
    number = stderr_number()
    data = text.encode(getattr(sys.__stderr__, "encoding", None) or "utf-8", "backslashreplace")
    with contextlib.suppress(OSError, ValueError):  # it is closed: there is nobody to tell
        while data and (os.name != "posix" or select.select([], [number], [], seconds)[1]):
            data = data[os.write(number, data[:CHUNK]) :]


def stderr_number() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ else 2
    except (OSError, ValueError):  # it is closed, or not a file
        return 2
