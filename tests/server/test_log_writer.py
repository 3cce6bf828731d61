"""LogWriter: who logs never waits, lines do, and those that find no room are counted."""

from __future__ import annotations

import io
import logging
import re
import threading
from dataclasses import dataclass, field

import pytest

from helpers.serving import PATIENCE
from ngramspec.cli.serve.log import LogWriter

NOTE = re.compile(r"dropped (\d+) lines here, as nobody read or stored them in time")


@dataclass
class Reader:
    """What a writer writes to, and its lines; it takes none until `read` is called."""

    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = LogWriter(self._take, room=60_000)
        self.logger = logger_to(self.writer)
        self._reads = threading.Event()

    def fill(self) -> int:
        """Log more than there is room for and return how many lines that were."""
        for number in range(1000):
            self.logger.info("%d %s", number, "x" * 400)
        return 1000

    def read(self) -> None:
        self._reads.set()

    def _take(self, record: logging.LogRecord) -> None:
        self._reads.wait(PATIENCE)
        self.lines.append(record.getMessage())


def logger_to(*handlers: logging.Handler) -> logging.Logger:
    """Return a logger that no other code can get."""
    logger = logging.Logger("test", logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    return logger


def check(lines: list[str], count: int) -> None:
    """Check that the first lines are there, and then one that tells how many are not."""
    *first, note = lines
    match = NOTE.fullmatch(note)
    assert match is not None, note
    assert [int(line.split()[0]) for line in first] == list(range(len(first)))
    assert 30 < len(first) < 50
    assert len(first) + int(match[1]) == count


def test_lines_that_find_no_room_are_dropped_and_told_before_the_next() -> None:
    reader = Reader()
    count = reader.fill()  # nobody reads, and yet it ends
    reader.read()
    assert reader.writer.wait(PATIENCE)
    reader.logger.info("later")
    reader.logger.info("later still")
    assert reader.writer.end(PATIENCE)
    assert reader.lines[-2:] == ["later", "later still"]
    check(reader.lines[:-2], count)


def test_the_room_is_one_of_bytes() -> None:
    reader = Reader()
    writer = reader.writer = LogWriter(reader._take)
    logger = logger_to(writer)
    for number in range(1000):
        logger.info("%d %s", number, "x" * (1 << 16))
    reader.read()
    assert writer.end(PATIENCE)
    assert 1 << 20 < sum(map(len, reader.lines)) < 8 << 20


@pytest.mark.parametrize("late", [False, True])
def test_at_the_end_what_waits_is_written_and_what_was_dropped_is_told(late: bool) -> None:
    reader = Reader()
    count = reader.fill()
    if late:  # a reader that never comes is given up
        assert not reader.writer.end(0.1)
    reader.read()
    assert reader.writer.end(PATIENCE)
    check(reader.lines, count)


def test_a_line_that_cannot_be_written_does_not_end_the_log() -> None:
    seen: list[str] = []

    def write(record: logging.LogRecord) -> None:
        if not seen:
            seen.append("failed")
            raise OSError("the disk is full")
        seen.append(record.getMessage())

    writer = LogWriter(write)
    logger = logger_to(writer)
    logger.info("one")
    logger.info("two")
    assert writer.end(PATIENCE)
    assert seen == ["failed", "two"]


def test_lines_look_as_if_they_were_written_at_once() -> None:
    formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    seen: list[str] = []
    writer = LogWriter(lambda record: seen.append(formatter.format(record)))
    at_once = logging.StreamHandler(io.StringIO())
    at_once.setFormatter(formatter)
    logger = logger_to(writer, at_once)
    try:
        raise ZeroDivisionError("the device is gone")
    except ZeroDivisionError:
        logger.exception("%s of 100 %%: %r", "it", "%s")
    logger.warning("100 %s")
    assert writer.end(PATIENCE)
    assert seen[0].startswith("ERROR test: it of 100 %: '%s'\nTraceback ")
    assert "\n".join(seen) == at_once.stream.getvalue().rstrip("\n")
