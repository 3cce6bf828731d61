"""LogWriter: writes the log in a thread of its own, so that no request waits for who reads it."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener

Write = Callable[[logging.LogRecord], object]
ROOM = 4 << 20  # characters of the records that wait
OVERHEAD = 1024  # characters that a record counts besides its text


class LogWriter:
    """Takes records in any thread without waiting, and writes them in one of its own, in order.

    When more wait than there is room for, further ones are dropped until half of the room is free
    again. Then a record tells how many were dropped.

    handler: Takes the records.

    Args:
        write: Writes a record, with text and stack in its message, however long that takes.
        room: In characters; every record counts OVERHEAD more than its text has.
    """

    def __init__(self, write: Write, room: int = ROOM) -> None:
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue()
        self._taking = _Taking(self._records, room)
        self.handler: logging.Handler = self._taking
        self._writing = _Writing(self._records, self._taking, write)
        self._writing.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was taken is written; False if that takes longer."""
        done = self._records.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._records.unfinished_tasks, seconds)

    def close(self, seconds: float) -> bool:
        """Write what waits and end the thread; take no records any more.

        seconds: How long nothing may be written. After that, the thread is left behind, as it
            waits for something that may never come, and False is returned.
        """
        self._taking.tell_dropped()
        written = self._taking.written
        while not self.flush(seconds):
            if self._taking.written == written:
                return False
            written = self._taking.written
        self._writing.stop()
        return True


class _Taking(QueueHandler):
    """Puts records into a queue while there is room. Its own lock guards what it counts.

    written: Characters that were written; counted by the thread that writes.
    """

    def __init__(self, records: queue.Queue[logging.LogRecord | None], room: int) -> None:
        super().__init__(records)
        self.setFormatter(logging.Formatter())  # how a line looks is for who writes it
        self._room = room
        self._taken = 0
        self._dropped = 0
        self.written = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Take a record, or drop it; the caller holds the lock."""
        waiting = self._taken - self.written
        if waiting >= (self._room // 2 if self._dropped else self._room):
            self._dropped += 1
            return
        self._tell_dropped()
        self._put(record)

    def tell_dropped(self) -> None:
        """Add the record that tells how many were dropped, if any were."""
        self.acquire()
        try:
            self._tell_dropped()
        finally:
            self.release()

    def _tell_dropped(self) -> None:
        if self._dropped:
            lines = "line" if self._dropped == 1 else "lines"
            text = f"dropped {self._dropped} {lines} here, as nobody read or stored them in time"
            self._put(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))
            self._dropped = 0

    def _put(self, record: logging.LogRecord) -> None:
        self._taken += size_of(record)
        self.queue.put_nowait(record)


class _Writing(QueueListener):
    """The thread that writes."""

    def __init__(
        self, records: queue.Queue[logging.LogRecord | None], taking: _Taking, write: Write
    ) -> None:
        super().__init__(records)
        self._taking = taking
        self._write = write

    def handle(self, record: logging.LogRecord) -> None:
        """Write a record."""
        with contextlib.suppress(Exception):  # the next one may be fine
            self._write(record)
        self._taking.written += size_of(record)


def size_of(record: logging.LogRecord) -> int:
    """Return how much of the room a record takes, in characters."""
    return OVERHEAD + len(record.msg)
