"""Lines for whoever runs a command: on stderr, and in the log of one that writes a log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import click


class _Stderr(logging.Handler):
    """Writes lines as they are, at whatever level the log is."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        click.echo(record.getMessage(), err=True)


TOLD = logging.getLogger("ngramspec.told")
TOLD.propagate = False
TOLD.setLevel(logging.INFO)
TOLD.addHandler(_Stderr())


def tell(line: str) -> None:
    """Write a line, or several, to stderr and to the log.

    Raises:
        OSError: stderr cannot be written, outside of `told_by`.
    """
    TOLD.info("%s", line)


@contextlib.contextmanager
def told_by(handlers: Sequence[logging.Handler]) -> Iterator[None]:
    """Have others write the lines that are told in the block, those for stderr as well."""
    before = list(TOLD.handlers)
    _replace(before, handlers)
    try:
        yield
    finally:
        _replace(handlers, before)


def _replace(old: Sequence[logging.Handler], new: Sequence[logging.Handler]) -> None:
    for handler in old:
        TOLD.removeHandler(handler)
    for handler in new:
        TOLD.addHandler(handler)
