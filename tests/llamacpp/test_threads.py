"""ThreadPlan: threads of a context's own on real models, and how processors are written."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import pytest

from helpers.decoding import rows_of
from helpers.scheduling import same_scheduling
from ngramspec.errors import InputError
from ngramspec.llamacpp import threads
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.llamacpp.threads import (
    ThreadPlan,
    cpus_of_mask,
    cpus_of_range,
    in_own_thread,
    set_numa,
    set_priority,
)
from ngramspec.models import embedded_model
from ngramspec.text.tokenizers.llama_library import load_library

IDS = [7 * i % 90 + 5 for i in range(20)]
USABLE = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]


@pytest.mark.parametrize(
    ("plans", "counts"),
    [
        ((ThreadPlan(poll=0), ThreadPlan(poll=0)), (2, 2)),
        ((ThreadPlan(), ThreadPlan(poll=100)), (1, 2)),
        ((ThreadPlan(cpus=frozenset(USABLE[:1]), strict=True), ThreadPlan(priority=-1)), (1, 1)),
    ],
)
def test_threads_of_its_own_compute_the_same(
    plans: tuple[ThreadPlan, ThreadPlan], counts: tuple[int, int]
) -> None:
    with same_scheduling(), LlamaModel(embedded_model()) as model:
        settings = {"slots": 1, "context_size": 256, "flash_attn": True}
        with LlamaTarget(model, threads=1, **settings) as target:
            plain = rows_of(target, IDS, step=8)
        own = {"threads": counts[0], "threads_batch": counts[1], "thread_plans": plans}
        with LlamaTarget(model, **own, **settings) as target:
            batch = rows_of(target, IDS, step=8)
            target.truncate(0, 0)
            single = rows_of(target, IDS, step=1)  # by the other threads, if there are two kinds
            assert batch == pytest.approx(plain, abs=0.05)
            assert single == pytest.approx(plain, abs=0.05)
            assert rows_of(target, IDS, start=len(IDS)).shape == plain.shape


def test_an_interrupted_computation_ends_before_the_interrupt_is_raised() -> None:
    ended = threading.Event()

    def compute(check: Callable[[], None]) -> None:
        check()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            while True:
                check()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        in_own_thread(compute)
    assert ended.is_set()


def test_processors_are_written_as_masks_and_ranges() -> None:
    assert cpus_of_mask("0x5") == {0, 2}
    assert cpus_of_mask("F0") == {4, 5, 6, 7}
    assert cpus_of_range("2-4") == {2, 3, 4}
    assert cpus_of_range("-1") == {0, 1}
    assert cpus_of_range("510-") == {510, 511}


@pytest.mark.parametrize("text", ["xyz", "", "1" + "0" * 128, "-1"])
def test_other_masks_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="a CPU mask must be"):
        cpus_of_mask(text)


@pytest.mark.parametrize("text", ["3", "a-b", "0-512", ""])
def test_other_ranges_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="a CPU range must be as 0-7"):
        cpus_of_range(text)


def test_plans_out_of_their_bounds_are_refused() -> None:
    with pytest.raises(InputError, match=r"cpus must be in 0\.\.511, got 512"):
        ThreadPlan(cpus=frozenset((512,)))
    with pytest.raises(InputError, match=r"priority must be in -1\.\.3, got 4"):
        ThreadPlan(priority=4)
    with pytest.raises(InputError, match=r"poll must be in 0\.\.100, got 101"):
        ThreadPlan(poll=101)
    with pytest.raises(InputError, match="numa must be one of distribute, isolate, numactl"):
        set_numa(load_library(), "mirror")


def test_a_priority_that_is_not_permitted_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, ...]] = []

    def refuse(*arguments: int) -> None:
        asked.append(arguments)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(threads.os, "setpriority", refuse)
    set_priority(0)
    assert asked == []
    set_priority(2)
    assert asked == [(os.PRIO_PROCESS, 0, -10)]
    assert "the priority of the process cannot be 2" in caplog.text
