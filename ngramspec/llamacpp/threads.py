"""ThreadPlan: on which processors, how urgently and how eagerly llama.cpp's threads run."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, TypeVar

from ngramspec.errors import BackendError, InputError
from ngramspec.text.tokenizers.llama_library import Handle, Library, function_of

log = logging.getLogger(__name__)
MAX_CPUS = 512  # that llama.cpp knows
PRIORITIES = (-1, 0, 1, 2, 3)  # low, normal, medium, high, realtime
NICE = {-1: 5, 0: 0, 1: -5, 2: -10, 3: -20}  # of a process, by priority
NUMA = ("distribute", "isolate", "numactl")
POLL = 50
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ThreadPlan:
    """How threads run.

    cpus: Processors that they may use; none = all.
    strict: Give each thread one of these for itself.
    priority: One of PRIORITIES.
    poll: How eagerly they wait for work, 0 = asleep, 100 = always awake.
    """

    cpus: frozenset[int] = frozenset()
    strict: bool = False
    priority: int = 0
    poll: int = POLL

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InputError: A value is out of its bounds.
        """
        wrong = sorted(cpu for cpu in self.cpus if not 0 <= cpu < MAX_CPUS)
        if wrong:
            raise InputError(f"cpus must be in 0..{MAX_CPUS - 1}, got {wrong[0]}")
        if self.priority not in PRIORITIES:
            raise InputError(f"priority must be in -1..3, got {self.priority}")
        if not 0 <= self.poll <= 100:
            raise InputError(f"poll must be in 0..100, got {self.poll}")


class _Params(ctypes.Structure):
    """ggml_threadpool_params."""

    cpumask: Any
    n_threads: int
    prio: int
    poll: int
    strict_cpu: bool
    paused: bool
    _fields_ = (
        ("cpumask", ctypes.c_bool * MAX_CPUS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


def in_own_thread(compute: Callable[[Callable[[], None]], T]) -> T:
    """Return what a function returns that runs in a thread of its own, which ends with it.

    For passes before the engine's thread makes them. GCC's OpenMP keeps helpers for every thread
    that has ever computed. Once these are more than the processors, all of them sleep whenever they
    wait for each other, and each pass takes twice as long. They end with their thread.

    compute: Gets a function to call before each pass, which raises once the caller is interrupted.

    Raises:
        KeyboardInterrupt: While it ran, which has ended.
        Exception: That of the function.
    """
    outcome: Future[T] = Future()
    over = threading.Event()

    def check() -> None:
        if over.is_set():
            raise CancelledError

    def run() -> None:
        try:
            outcome.set_result(compute(check))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run)
    try:
        thread.start()
        return outcome.result()
    finally:
        over.set()
        if thread.is_alive():  # an executor would lose a thread whose start is interrupted
            thread.join()


def attach_threads(
    lib: Any, context: Any, plans: tuple[ThreadPlan, ThreadPlan], counts: tuple[int, int]
) -> list[Handle]:
    """Give a context threads of its own; free what is returned once the context is freed.

    Args:
        lib: The module llama_cpp.llama_cpp.
        context: The llama_context.
        plans: For single tokens, and for batches.
        counts: Threads of each.

    Raises:
        BackendError: This build of llama.cpp has no thread pools, or cannot start one.
    """
    same = plans[0] == plans[1] and counts[0] == counts[1]
    pools = [] if same else [_start(plans[1], counts[1], paused=False)]
    pools.append(_start(plans[0], counts[0], paused=not same))  # one of two sleeps
    try:
        attach = lib._lib["llama_attach_threadpool"]
    except AttributeError as error:
        raise BackendError("this build of llama.cpp has no llama_attach_threadpool") from error
    attach.restype, attach.argtypes = None, (ctypes.c_void_p,) * 3
    attach(context, pools[-1].address, None if same else pools[0].address)
    return pools


def set_priority(priority: int) -> None:
    """Set the priority of this process, one of PRIORITIES; a warning tells when it may not."""
    if not priority:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICE[priority])
    except (AttributeError, OSError) as error:
        log.warning("the priority of the process cannot be %d: %s", priority, error)


def set_numa(library: Library, strategy: str) -> None:
    """Let llama.cpp spread threads over the nodes of a NUMA machine; before a model is loaded.

    Raises:
        InputError: The strategy is not one of NUMA.
    """
    if strategy not in NUMA:
        raise InputError(f"numa must be one of {', '.join(NUMA)}, got {strategy!r}")
    lib = library.lib
    lib.llama_numa_init(getattr(lib, f"GGML_NUMA_STRATEGY_{strategy.upper()}"))


def cpus_of_mask(text: str) -> frozenset[int]:
    """Return the processors of a mask in hexadecimal digits, the last digit for the first four.

    Raises:
        InputError: It is not hexadecimal, or names too many.
    """
    try:
        bits = int(text, 16)
    except ValueError:
        raise InputError(f"a CPU mask must be hexadecimal, such as ff, got {text!r}") from None
    if bits < 0 or bits >> MAX_CPUS:
        raise InputError(f"a CPU mask must be for CPUs 0..{MAX_CPUS - 1}, got {text!r}")
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def cpus_of_range(text: str) -> frozenset[int]:
    """Return the processors of a range such as 0-7, 4- or -3.

    Raises:
        InputError: It is not a range of processors that llama.cpp knows.
    """
    low, dash, high = text.partition("-")
    ends = (low or "0", high or str(MAX_CPUS - 1))
    if not dash or not all(end.isdecimal() and int(end) < MAX_CPUS for end in ends):
        raise InputError(f"a CPU range must be as 0-7, within 0..{MAX_CPUS - 1}, got {text!r}")
    return frozenset(range(int(ends[0]), int(ends[1]) + 1))


def _start(plan: ThreadPlan, count: int, *, paused: bool) -> Handle:
    initialize = function_of(
        "ggml_threadpool_params_init", None, ctypes.POINTER(_Params), ctypes.c_int
    )
    start = function_of("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(_Params))
    params = _Params()
    initialize(params, count)
    for cpu in plan.cpus:
        params.cpumask[cpu] = True
    params.prio, params.poll = plan.priority, plan.poll
    params.strict_cpu, params.paused = plan.strict, paused
    address = start(params)
    if not address:
        raise BackendError(f"llama.cpp cannot start {count} threads")
    free = function_of("ggml_threadpool_free", None, ctypes.c_void_p)
    return Handle(free, address)
