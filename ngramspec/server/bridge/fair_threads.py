"""FairThreads: a few threads that work for all tenants in turn, whoever gives them most work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class FairThreads:
    """FairThreads(threads, name): run jobs in threads; the jobs of each tenant in their order.

    Thread-safety: any thread may call any method.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()  # guards the next
        self._waiting: dict[str, deque[_Job]] = {}  # by tenant; whose turn is next comes first

    def submit(self, work: Callable[[], T], tenant: str) -> Future[T]:
        """Run work() when it is its tenant's turn; return its future.

        Raises:
            RuntimeError: It is closed.

        Cost: O(1).
        """
        future: Future[T] = Future()
        with self._lock:
            self._executor.submit(self._run_next)
            self._waiting.setdefault(tenant, deque()).append((future, work))
        return future

    def close(self, *, wait: bool) -> None:
        """Accept no more jobs and cancel those that have not begun; wait: for the others."""
        with self._lock:
            self._executor.shutdown(wait=False, cancel_futures=True)
            dropped = [future for jobs in self._waiting.values() for future, _ in jobs]
            self._waiting.clear()
        for future in dropped:
            future.cancel()
        if wait:
            self._executor.shutdown(wait=True)

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # closed
            tenant, jobs = next(iter(self._waiting.items()))
            future, work = jobs.popleft()
            del self._waiting[tenant]
            if jobs:
                self._waiting[tenant] = jobs  # its next turn comes after those of all others
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
            del future  # breaks the cycle of the error's traceback and the future
        else:
            future.set_result(result)
