"""The threads that work on batches: all drafters share them; a fork and the end are no trouble."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest

from helpers.together import run_together
from ngramspec import Drafter, SuffixPool, create_drafter
from ngramspec._native.core.threads import num_workers

SLOTS = 64
WIDTH = 600


def text(seed: int) -> Any:
    """Random tokens that repeat parts of themselves."""
    rng = np.random.default_rng(seed)
    return np.tile(rng.integers(0, 50, WIDTH // 4, dtype=np.int32), 4)


def run(drafter: Drafter, seed: int, steps: int = 10) -> list[Any]:
    """Draft and follow for all slots, as if the target repeated itself; return the drafts."""
    table = np.stack([text(seed + slot) for slot in range(SLOTS)])
    lengths = np.full(SLOTS, 200, np.int32)
    slots, accepted = np.arange(SLOTS, dtype=np.int32), np.zeros(SLOTS, np.int32)
    drafts, lens = np.zeros((SLOTS, 8), np.int32), np.zeros(SLOTS, np.int32)
    seen = []
    for slot in range(SLOTS):
        drafter.begin(slot, table[slot, :200])
    for _ in range(steps):
        drafter.propose_batch(slots, 8, drafts, lens)
        lengths = lengths + lens + 1
        drafter.follow_batch(slots, table, lengths, accepted)
        assert np.array_equal(accepted, lens)
        seen.append((drafts.tolist(), lens.tolist()))
    return seen


def alone(**options: Any) -> Drafter:
    return create_drafter("suffix", slots=SLOTS, share=False, **options)


def test_drafters_of_several_threads_take_turns_with_the_workers() -> None:
    expected = [run(alone(threads=1), 100 * number) for number in range(3)]

    def work(number: int) -> None:
        for _ in range(5):
            drafter = alone(threads=4)
            assert run(drafter, 100 * number) == expected[number]
            assert drafter.check() == ""

    run_together(work, 3)
    assert num_workers() == 3  # one set for the process


def test_drafters_share_a_pool_while_their_batches_run_on_many_threads() -> None:
    pool = SuffixPool(1 << 14)  # small: blocks are taken anew all the time

    def work(number: int) -> None:
        for round_number in range(6):
            drafter = create_drafter("suffix", slots=SLOTS, pool=pool, threads=3)
            table = np.stack([text(7 * round_number + slot % 9) for slot in range(SLOTS)])
            slots, accepted = np.arange(SLOTS, dtype=np.int32), np.zeros(SLOTS, np.int32)
            drafts, lens = np.zeros((SLOTS, 8), np.int32), np.zeros(SLOTS, np.int32)
            for slot in range(SLOTS):
                drafter.begin(slot, table[slot, :100])
            for length in range(101, 300, 3):
                drafter.propose_batch(slots, 8, drafts, lens)
                assert lens.min() >= 0
                assert drafts.max() < 50
                drafter.follow_batch(slots, table, np.full(SLOTS, length, np.int32), accepted)
                assert (accepted >= 0).all()
            for slot in range(SLOTS):
                drafter.end(slot)
            assert drafter.check() == ""

    run_together(work, 3)
    assert pool.check() == ""


def test_workers_sleep_when_there_is_nothing_to_do() -> None:
    drafter = alone(threads=4)
    run(drafter, 1)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


SIGNALLED = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from threads.test_batches import alone, run
caught = []
signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
run(alone(threads=4), 1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.1)
print(caught, signal.SIGUSR1 in signal.sigpending())
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
print(caught == [signal.SIGUSR1])
"""


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="this system has no signal masks"
)
def test_signals_are_left_to_the_threads_that_there_were() -> None:
    """While the only other thread blocks a signal it stays pending: no worker takes it."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(tests=tests)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # whose threads would take it
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["[] True", "True"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_starts_its_own() -> None:
    expected = run(alone(threads=4), 5)
    drafter = alone(threads=4)
    run(drafter, 9, steps=3)
    assert num_workers() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child == 0:
        worked = num_workers() == 0 and run(alone(threads=4), 5) == expected
        worked = worked and num_workers() == 3
        os._exit(0 if worked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(alone(threads=4), 5) == expected  # here they are still there


ENDING = """
import sys, threading
sys.path.insert(0, {tests!r})
from threads.test_batches import alone, run
drafter = alone(threads=4)
run(drafter, 1)
threading.Thread(target=lambda: [run(drafter, seed) for seed in range(10_000)], daemon=True).start()
run(alone(threads=4), 2)
print("end")
"""


def test_a_process_ends_in_the_midst_of_a_batch() -> None:
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", ENDING.format(tests=tests)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
