"""Writing to stderr by threads that must not wait for Python's locks, nor always for its reader."""

from __future__ import annotations

import contextlib
import os
import select
import sys

# What fits into a pipe that is ready, so that writing it does not wait.
CHUNK = getattr(select, "PIPE_BUF", 512)


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
    """Return the file descriptor of stderr."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ else 2
    except (OSError, ValueError):  # it is closed, or not a file
        return 2
