"""Lines for whoever runs a command: on stderr, and in the log of one that writes a log."""

from __future__ import annotations

import logging

import click


class _Stderr(logging.Handler):
    """Writes lines as they are, at whatever level the log is."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        click.echo(record.getMessage(), err=True)


TOLD = logging.getLogger("ngramspec.told")  # a log file is one more handler of it
TOLD.propagate = False
TOLD.setLevel(logging.INFO)
TOLD.addHandler(_Stderr())


def tell(line: str) -> None:
    """Write a line, or several, to stderr and to the log.

    Raises:
        OSError: stderr cannot be written.
    """
    TOLD.info("%s", line)
