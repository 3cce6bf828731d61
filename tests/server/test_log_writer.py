"""LogWriter: who logs never waits, lines do, and those that find no room are counted."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

import pytest

from helpers.serving import PATIENCE
from ngramspec.cli.serve.log_writer import OVERHEAD, LogWriter

NOTE = re.compile(r"dropped (\d+) lines here, as nobody read or stored them in time")


@dataclass
class Pipe:
    """A writer whose lines go into a pipe that is read once `read` is called."""

    source: TextIO
    sink: TextIO
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = LogWriter(self._write, room=50 * OVERHEAD)
        self.logger = logger_to(self.writer.handler)
        self._reader = threading.Thread(
            target=lambda: self.lines.extend(line.rstrip("\n") for line in self.source)
        )

    def fill(self) -> int:
        """Log more than pipe and room hold and return how many lines that were."""
        for number in range(1000):
            self.logger.info("%d %s", number, "x" * 400)
        return 1000

    def read(self) -> None:
        self._reader.start()

    def close(self) -> None:
        assert self.writer.close(PATIENCE)
        self.sink.close()
        self._reader.join(PATIENCE)

    def _write(self, record: logging.LogRecord) -> None:
        self.sink.write(f"{record.getMessage()}\n")


def logger_to(*handlers: logging.Handler) -> logging.Logger:
    """Return a logger that no other code can get."""
    made = logging.Logger("test", logging.INFO)
    for handler in handlers:
        made.addHandler(handler)
    return made


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read, write = os.pipe()
    with open(read) as source, open(write, "w", buffering=1) as sink:
        yield Pipe(source, sink)


def check(lines: list[str], count: int) -> None:
    """Check that the first lines are there, and then one that tells how many are not."""
    *kept, told = lines
    found = NOTE.fullmatch(told)
    assert found is not None, told
    assert [int(line.split()[0]) for line in kept] == list(range(len(kept)))
    assert len(kept) > 50  # pipe and room hold more
    assert len(kept) + int(found[1]) == count


def test_lines_that_find_no_room_are_dropped_and_told_before_the_next(pipe: Pipe) -> None:
    count = pipe.fill()  # nobody reads, and yet it ends
    pipe.read()
    assert pipe.writer.flush(PATIENCE)
    pipe.logger.info("later")
    pipe.logger.info("later still")
    pipe.close()
    assert pipe.lines[-2:] == ["later", "later still"]
    check(pipe.lines[:-2], count)


def test_at_the_end_what_waits_is_written_and_what_was_dropped_is_told(pipe: Pipe) -> None:
    count = pipe.fill()
    pipe.read()
    pipe.close()
    check(pipe.lines, count)


def test_a_reader_that_never_comes_is_given_up(pipe: Pipe) -> None:
    count = pipe.fill()
    assert not pipe.writer.close(0.1)
    pipe.read()  # it comes after all
    pipe.close()
    check(pipe.lines, count)


def test_a_line_that_cannot_be_written_does_not_end_the_log() -> None:
    seen: list[str] = []

    def write(record: logging.LogRecord) -> None:
        if not seen:
            seen.append("failed")
            raise OSError("the disk is full")
        seen.append(record.getMessage())

    writer = LogWriter(write)
    logger = logger_to(writer.handler)
    logger.info("one")
    logger.info("two")
    assert writer.close(PATIENCE)
    assert seen == ["failed", "two"]


def test_lines_look_as_if_they_were_written_at_once() -> None:
    formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    seen: list[str] = []
    writer = LogWriter(lambda record: seen.append(formatter.format(record)))
    at_once = logging.StreamHandler(io.StringIO())
    at_once.setFormatter(formatter)
    logger = logger_to(writer.handler, at_once)
    try:
        raise ZeroDivisionError("the device is gone")
    except ZeroDivisionError:
        logger.exception("%s of 100 %%: %r", "it", "%s")
    logger.warning("100 %s")
    assert writer.close(PATIENCE)
    assert seen[0].startswith("ERROR test: it of 100 %: '%s'\nTraceback ")
    assert "\n".join(seen) == at_once.stream.getvalue().rstrip("\n")
