"""Threads that work at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_together(work: Callable[[int], None], count: int) -> None:
    """Run work(0..count-1), each in a thread; the first exception is raised here."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def body(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "threads are stuck"
    if failures:
        raise failures[0]
