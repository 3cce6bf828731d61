"""SlotTasks: work on idle slots, done by the engine's thread between decodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ngramspec._native.engine.slot import Slot

T = TypeVar("T")
# Slot, work, cells of the cache that it takes, where its result goes.
Task = tuple[int, Callable[[Slot], Any], int, "Future[Any]"]


class SlotTasks:
    """Work that waits until its slot is idle and the cache has room. It comes before requests.

    Thread-safety: `put`, `fail` and len from any thread, `run` from the engine's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._waiting: list[Task] = []
        self._running: list[Task] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, slot: int, work: Callable[[Slot], T], cells: int = 0) -> Future[T]:
        """Queue work(slot); cancelling the future drops it if it has not begun."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((slot, work, cells, future))
        return future

    def run(self, slots: Sequence[Slot], free: Callable[[], int]) -> bool:
        """Do all work whose slot is idle; its errors go to the futures.

        free: Returns how many cells of the cache are free for it.

        Returns:
            bool: False where some has an idle slot but no cells: nobody else should take them.
        """
        with self._lock:
            idle = [task for task in self._waiting if slots[task[0]].generation is None]
            ready = [
                task for task in idle if task[3].cancelled() or not task[2] or task[2] <= free()
            ]
            self._waiting = [task for task in self._waiting if task not in ready]
            self._running = ready
        for task in ready:
            slot, work, _, future = task
            with self._lock:  # what `fail` has ended is no longer there
                begun = task in self._running and future.set_running_or_notify_cancel()
            if begun:
                with suppress(InvalidStateError):  # `fail` has ended it meanwhile
                    _run(future, partial(work, slots[slot]))
        with self._lock:
            self._running = []
        return len(ready) == len(idle)

    def fail(self, error: Exception) -> None:
        """End all work with an error, also what another thread is at: it may never end."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            running, self._running = self._running, []
        for *_, future in running:
            with suppress(InvalidStateError):  # it has just ended
                future.set_exception(error)
        for *_, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
    """Do a piece of work; its result or error goes to the future."""
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
