"""LogWriter: writes the log in a thread of its own, so that no request waits for who reads it."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener

Write = Callable[[logging.LogRecord], object]
ROOM = 4096  # records that wait


class LogWriter(QueueHandler):
    """Takes records in any thread without waiting, and writes them in one of its own, in order.

    When more wait than there is room for, further ones are dropped until half of the room is free
    again. Then a record tells how many were dropped.

    Args:
        write: Writes a record, with text and stack in its message, however long that takes.
        room: In records.
    """

    def __init__(self, write: Write, room: int = ROOM) -> None:
        self._records: queue.Queue[logging.LogRecord] = queue.Queue()
        super().__init__(self._records)
        self.setFormatter(logging.Formatter())  # how a line looks is for who writes it
        self._room = room
        self._dropped = 0
        self._thread = _Thread(self._records, write)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Take a record, or drop it; the caller holds the lock."""
        if self._records.qsize() >= (self._room // 2 if self._dropped else self._room):
            self._dropped += 1
            return
        self._tell_dropped()
        self._records.put_nowait(record)

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
            self._records.put_nowait(note)
            self._dropped = 0


class _Thread(QueueListener):
    """The thread that writes."""

    def __init__(self, records: queue.Queue[logging.LogRecord], write: Write) -> None:
        super().__init__(records)
        self._write = write

    def handle(self, record: logging.LogRecord) -> None:
        """Write a record."""
        with contextlib.suppress(Exception):  # the next one may be fine
            self._write(record)
