"""The server's log: its level, where it goes, and what else goes to its file."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import click

from ngramspec.cli.command import error_line
from ngramspec.cli.told import TOLD
from ngramspec.errors import NgramspecError
from ngramspec.server.http.shutdown import NOTE

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# llama.cpp's thresholds of verbosity: 0 and 1 errors, 2 warnings, 3 information, more: all.
LEVELS = ("error", "error", "warning", "info")


@contextlib.contextmanager
def logging_to(options: Mapping[str, Any]) -> Iterator[LogFile]:
    """Send the log to stderr in the block, and to --log-file if that is given.

    The file also gets the lines that commands tell their users, and the error that ends the block.

    Raises:
        OSError: The file cannot be written.
    """
    file = LogFile(options["log_file"])
    level = level_of(options)
    handlers = [logging.StreamHandler(sys.stderr), *file.handlers]
    logging.basicConfig(level=level.upper(), format=FORMAT, handlers=handlers)
    if not options["access_log"]:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    for handler in file.handlers:
        TOLD.addHandler(handler)
    try:
        yield file
    except (Exception, KeyboardInterrupt) as error:
        file.note(_told_as(error))
        raise
    finally:
        for handler in file.handlers:
            TOLD.removeHandler(handler)
            logging.getLogger().removeHandler(handler)
            handler.close()


class LogFile:
    """The file of --log-file, or none. If it is moved away, as logrotate does, a new one begins.

    handlers: What writes it, none without a file.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.handlers: list[logging.Handler] = []
        if path is not None:
            self.handlers.append(_WatchedFile(path, encoding="utf-8"))
            self.handlers[0].setFormatter(logging.Formatter(FORMAT))

    def note(self, line: str) -> None:
        """Write what stderr gets in another way. Cost: it waits for the disk."""
        level = logging.INFO if line == NOTE else logging.ERROR
        record = logging.LogRecord(TOLD.name, level, __file__, 0, "%s", (line,), None)
        for handler in self.handlers:
            handler.handle(record)


class _WatchedFile(WatchedFileHandler):
    """A file whose failures never reach who logs: it may not be there to open when it was moved."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; what goes wrong is told on stderr, as logging does elsewhere."""
        try:
            super().emit(record)
        except Exception:
            self.handleError(record)


def level_of(options: Mapping[str, Any]) -> str:
    """Return the level: --log-level, or what llama.cpp's options ask for."""
    if options["log_level"] is not None:
        return str(options["log_level"])
    if options["log_disable"]:
        return "error"
    if options["verbose"]:
        return "debug"
    verbosity = max(0, options["verbosity"])
    return LEVELS[verbosity] if verbosity < len(LEVELS) else "debug"


def _told_as(error: BaseException) -> str:
    """Return an error as the command tells it: in one line, or with its stack if it is a bug."""
    if isinstance(error, click.ClickException):
        return f"Error: {error.format_message()}"
    if isinstance(error, (NgramspecError, OSError, MemoryError)):
        return f"Error: {error_line(error)}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return "".join(traceback.format_exception(error)).rstrip()
