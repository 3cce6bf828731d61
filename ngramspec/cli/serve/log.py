"""The server's log: its level, where it goes, and what else goes to its file.

Threads of its own write it, so that no request waits for who reads it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import sys
import traceback
from collections.abc import Callable, Iterator
from logging import ERROR, INFO
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from pathlib import Path

import click

from ngramspec.cli.command import error_line
from ngramspec.cli.output import TELLER, tell_through
from ngramspec.cli.serve.options import LogOptions
from ngramspec.errors import NgramspecError
from ngramspec.server.http.shutdown import NOTE, NOTE_SECONDS, leave_at_once, write_stderr

FORMATTER = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
# At the end, how long nothing may be written before the rest is given up.
DISK_SECONDS = 30.0
READER_SECONDS = 2.0
# llama.cpp's thresholds of verbosity: 0 and 1 errors, 2 warnings, 3 information, more: all.
LEVELS = ("error", "error", "warning", "info")
Write = Callable[[logging.LogRecord], object]
ROOM = 4 << 20  # bytes of records that wait
RECORD_BYTES = 1024  # of a record, without its message


@contextlib.contextmanager
def logging_to(options: LogOptions) -> Iterator[Log]:
    """Send the log to stderr in the block, and to --log-file if that is given.

    Both also get the lines that commands tell their users, and the file the error that ends the
    block. Who logs waits for neither.

    Raises:
        OSError: The file cannot be written.
    """
    log = Log(options.log_file)
    logging.basicConfig(level=level_of(options).upper(), handlers=log.handlers)
    if not options.access_log:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        with tell_through(log.handlers):
            yield log
    except (Exception, KeyboardInterrupt) as error:
        log.note(_error_text(error))
        raise
    finally:
        for handler in log.handlers:
            logging.getLogger().removeHandler(handler)
        log.close()


class Log:
    """stderr and the file of --log-file, each with a thread that writes it.

    If nobody reads stderr, the file goes on, and the other way round. If the file is moved away, as
    logrotate does, a new one begins.

    handlers: What takes the lines.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = None if path is None else _WatchedFile(path, self._show_failure)
        self._stderr = LogWriter(_show)
        self._to_file = None if self._file is None else LogWriter(self._file.handle)
        writers = (self._stderr, self._to_file)
        self.handlers = [writer for writer in writers if writer is not None]

    def note(self, line: str) -> None:
        """Write to the file what stderr gets in another way.

        Cost: it waits for the disk, as long as a process that leaves waits for this.
        """
        if self._to_file is not None:
            self._to_file.handle(_bare(line, INFO if line == NOTE else ERROR))
            self._to_file.wait(NOTE_SECONDS)

    def close(self) -> None:
        """Write what waits. It ends the process if the disk hangs.

        A stderr that nobody reads is given up, for whatever else there may be to write, too.
        """
        if self._file is not None and self._to_file is not None:
            if not self._to_file.end(DISK_SECONDS):
                leave_at_once(f"{self._path} cannot be written")
            with contextlib.suppress(OSError):  # the disk is full: stderr was told
                self._file.close()
        if not self._stderr.end(READER_SECONDS):
            sys.stderr = io.StringIO()

    def _show_failure(self, line: str) -> None:
        """Write to stderr only: the file has failed."""
        self._stderr.handle(_bare(line, ERROR))


class _WatchedFile(WatchedFileHandler):
    """A file whose failures never reach who logs: it may not be there to open when it was moved.

    show: Writes to stderr what went wrong.
    """

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(FORMATTER)
        self._show_failure = show
        self._failure = ""  # why the latest line is not in the file

    def emit(self, record: logging.LogRecord) -> None:
        before, self._failure = self._failure, ""
        try:
            super().emit(record)
        except Exception:
            self.handleError(record)
        if self._failure not in ("", before):  # once for many lines
            self._show_failure(f"the log is not written to {self.baseFilename}: {self._failure}")

    def handleError(self, record: logging.LogRecord) -> None:
        self._failure = str(sys.exc_info()[1])


def _show(record: logging.LogRecord) -> None:
    """Write a record to stderr, however long its reader takes: what is told as it is."""
    line = record.getMessage() if record.name == TELLER.name else FORMATTER.format(record)
    if os.name == "posix" and sys.stderr is sys.__stderr__:
        write_stderr(f"{line}\n")
    else:
        click.echo(line, err=True)


def _bare(line: str, level: int) -> logging.LogRecord:
    return logging.LogRecord(TELLER.name, level, __file__, 0, "%s", (line,), None)


def level_of(options: LogOptions) -> str:
    """Return the level: --log-level, or what llama.cpp's options ask for."""
    if options.log_level is not None:
        return options.log_level
    if options.log_disable:
        return "error"
    if options.verbose:
        return "debug"
    verbosity = max(0, options.verbosity)
    return LEVELS[verbosity] if verbosity < len(LEVELS) else "debug"


def _error_text(error: BaseException) -> str:
    """Return an error as the command tells it: in one line, or with its stack if it is a bug."""
    if isinstance(error, click.ClickException):
        return f"Error: {error.format_message()}"
    if isinstance(error, (NgramspecError, OSError, MemoryError)):
        return f"Error: {error_line(error)}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "".join(traceback.format_exception(error)).rstrip()


class LogWriter(QueueHandler):
    """Takes records in any thread without waiting, and writes them in one of its own, in order.

    When those that wait fill the room, further ones are dropped until half of it is free again.
    Then a record tells how many were dropped.

    Args:
        write: Writes a record, with text and stack in its message, however long that takes.
        room: In bytes.
    """

    def __init__(self, write: Write, room: int = ROOM) -> None:
        self._records: queue.Queue[logging.LogRecord] = queue.Queue()
        super().__init__(self._records)
        self.setFormatter(logging.Formatter())  # how a line looks is for who writes it
        self._room = room
        self._dropped = 0
        self._taken = 0  # bytes of all records so far
        self._thread = _Thread(self._records, write)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Take a record, or drop it; the caller holds the lock."""
        waiting = self._taken - self._thread.written
        if waiting >= (self._room // 2 if self._dropped else self._room):
            self._dropped += 1
            return
        self._tell_dropped()
        self._put(record)

    def wait(self, seconds: float) -> bool:
        """Wait until all that was taken is written; False if that takes longer."""
        done = self._records.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._records.unfinished_tasks, seconds)

    def end(self, seconds: float) -> bool:
        """Write what waits and end the thread; take no records any more.

        seconds: How long nothing may be written. After that, the thread is left behind, as it
            waits for something that may never come, and False is returned.
        """
        self.acquire()
        self._tell_dropped()
        self.release()
        waiting = self._records.unfinished_tasks
        while not self.wait(seconds):
            if self._records.unfinished_tasks == waiting:
                return False
            waiting = self._records.unfinished_tasks
        self._thread.stop()
        return True

    def _tell_dropped(self) -> None:
        if self._dropped:
            lines = "line" if self._dropped == 1 else "lines"
            text = f"dropped {self._dropped} {lines} here, as nobody read or stored them in time"
            note = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
            self._put(note)
            self._dropped = 0

    def _put(self, record: logging.LogRecord) -> None:
        self._taken += _size(record)
        self._records.put_nowait(record)


class _Thread(QueueListener):
    """The thread that writes.

    written: Bytes of all records so far; only this thread changes it.
    """

    def __init__(self, records: queue.Queue[logging.LogRecord], write: Write) -> None:
        super().__init__(records)
        self._write = write
        self.written = 0

    def handle(self, record: logging.LogRecord) -> None:
        size = _size(record)
        with contextlib.suppress(Exception):  # the next one may be fine
            self._write(record)
        self.written += size


def _size(record: logging.LogRecord) -> int:
    return sys.getsizeof(record.msg) + RECORD_BYTES
