"""Ctrl-C: the first asks to stop where work can go on later, the second ends at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXIT_INTERRUPTED = 130


class Interrupt:
    """Interrupt(note): `requested` is True once Ctrl-C was pressed.

    note: A line for stderr then, unless `quiet` is set because something else shows it.
    """

    def __init__(self, note: str) -> None:
        self.note = note
        self.quiet = False
        self.requested = False

    def press(self, *_: Any) -> None:
        """Handle the signal: ask to stop, raise KeyboardInterrupt the second time."""
        if self.requested:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True
        if not self.quiet:  # print is not safe here: the signal may have come within a print
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{self.note}\n".encode())


@contextmanager
def interruptible(note: str) -> Iterator[Interrupt]:
    """Handle Ctrl-C in the block; outside the main thread, where none arrives, do nothing."""
    interrupt = Interrupt(note)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    old = signal.signal(signal.SIGINT, interrupt.press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, old)
