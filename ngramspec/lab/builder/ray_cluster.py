"""Talk to Ray: connect, keep the hosts busy, turn errors of tasks into errors of the build."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from ngramspec.errors import BackendError, InputError, NgramspecError
from ngramspec.lab.builder.local import BuildStopped
from ngramspec.lab.builder.options import LEAST_MEMORY
from ngramspec.lab.builder.result import Progress
from ngramspec.messages import not_installed

RETRIES = 8  # of a task whose process or host was lost
CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.25  # between looks at progress.stopped
GROW_SECONDS = 300.0  # that a cluster may have no host for a task: it may be growing
TASKS_PER_CORE = 2  # submitted: one runs, one waits
Ref = Any  # a ray.ObjectRef, which is not importable without Ray


def import_ray() -> Any:
    """Return the module ray.

    Raises:
        BackendError: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise BackendError(not_installed("a build on a cluster needs ray", "ray")) from error


@contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster for the block, or start Ray on this machine; end only what was started.

    A Ray that this process has already initialised is used as it is and kept running.

    Raises:
        BackendError: There is no cluster at the address, or Ray cannot start.
    """
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage data
        quiet["include_dashboard"] = False
    try:
        _reach(address)
        ray.init(address="local" if address is None else address, **quiet)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        where = "on this machine" if address is None else f"at {address}"
        raise BackendError(f"no Ray {where}: {' '.join(str(error).split())}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Raise OSError if nobody listens at host:port: Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


@contextmanager
def errors_of_tasks(ray: Any) -> Iterator[None]:
    """Raise what a task raised as if it had been raised here.

    Raises:
        BackendError: Ray lost a task or its result too often.
    """
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, NgramspecError | OSError | MemoryError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).partition("\n")[0]
        raise BackendError(f"Ray gave up after {RETRIES} retries: {reason}") from error


class Cluster:
    """Cluster(ray, progress): runs functions as tasks and waits for them until progress.stopped."""

    def __init__(self, ray: Any, progress: Progress) -> None:
        self._ray = ray
        self._progress = progress
        self._reserved: dict[Ref, int] = {}  # bytes, by the task that is waited for

    def remote(self, function: Callable[..., Any], memory: int = 0) -> Callable[..., Ref]:
        """Return a function that starts a task and returns a reference to its result.

        Args:
            function: Importable.
            memory: Bytes that the task reserves on its host; 0 = none.
        """
        task = self._ray.remote(function).options(
            num_cpus=1, max_retries=RETRIES, memory=memory or None
        )

        def start(*args: Any) -> Ref:
            ref = task.remote(*args)
            self._reserved[ref] = memory
            return ref

        return start

    def memory(self, num_bytes: int) -> int:
        """Return how many bytes a task can have: `num_bytes`, or what the largest host offers.

        Only hosts with a core count. If there is none yet, it is `num_bytes`.

        Raises:
            InputError: No host offers LEAST_MEMORY.
        """
        offered = self._offered()
        if not offered:
            return num_bytes
        most = max(offered)
        if most < LEAST_MEMORY:
            raise InputError(
                f"a task needs at least {LEAST_MEMORY >> 20} MiB of memory, the largest host "
                f"offers {most >> 20} MiB"
            )
        return min(num_bytes, most)

    def put(self, value: Any) -> Ref:
        return self._ray.put(value)

    def get(self, ref: Ref) -> Any:
        """Wait for an object and return it; arrays stay in Ray's memory until released.

        Raises:
            BuildStopped: progress.stopped.
            BackendError: No host can run the task.
        """
        self._wait_for_one_of([ref])
        return self._ray.get(ref)

    def run(
        self, numbers: Iterable[int], submit: Callable[[int], Ref]
    ) -> Iterator[tuple[int, Any]]:
        """Run tasks, at most TASKS_PER_CORE per core of the cluster at a time.

        Args:
            numbers: Of the tasks.
            submit: Starts a task and returns a reference to its result.

        Yields:
            Number and result of every task once it is done, in any order.

        Raises:
            BuildStopped: progress.stopped.
            BackendError: No host can run the tasks.
        """
        waiting, running = iter(numbers), dict[Ref, int]()
        while True:
            for i in islice(waiting, max(0, self.room() - len(running))):
                running[submit(i)] = i
            if not running:
                return
            ref = self._wait_for_one_of(list(running))
            yield running.pop(ref), self._ray.get(ref)

    def _wait_for_one_of(self, refs: list[Ref]) -> Ref:
        needed = min(self._reserved.get(ref, 0) for ref in refs)
        able = time.monotonic()  # when a host could run one of them
        while True:
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
            if self._progress.stopped:
                raise BuildStopped("stopped")
            if ready:
                self._reserved.pop(ready[0], None)
                return ready[0]
            if max(self._offered(), default=-1) >= needed:
                able = time.monotonic()
            elif time.monotonic() - able > GROW_SECONDS:
                raise BackendError(
                    f"no host of the cluster has a core and {needed >> 20} MiB of memory for a "
                    "task: add a host that has, or ask for less memory"
                )

    def _offered(self) -> list[int]:
        """Return the memory of each host that has a core, in bytes."""
        resources = [node["Resources"] for node in self._nodes()]
        return [int(one.get("memory", 0)) for one in resources if one.get("CPU", 0) >= 1]

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def room(self) -> int:
        """Return how many tasks may be submitted now; a cluster may grow and shrink."""
        cores = sum(node["Resources"].get("CPU", 0) for node in self._nodes())
        return max(2, TASKS_PER_CORE * int(cores))
