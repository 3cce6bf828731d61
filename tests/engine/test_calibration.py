"""Measuring batches on a made-up target, and taking them back from any kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine.calibration import (
    QUICK_CONTEXT,
    QUICK_SIZES,
    SETTLING,
    calibrate,
    calibrate_within,
    sizes_up_to,
)
from ngramspec.errors import BackendError, InputError

IDS = (np.arange(100) % 90 + 1).astype(np.int32)
MEMORIES: dict[str, dict[str, Any]] = {
    "any rollback": {},
    "snapshots": {"max_rollback": 4, "can_save": True},
    "states": {"max_rollback": 0, "can_save": True},
    "states that are refused at times": {"max_rollback": 0, "can_save": True, "refusal": 0.3},
    "nothing": {"max_rollback": 0},
}


class Watched(FakeTarget):
    """Notes where batches of outputs began and how many rows they asked for."""

    def decode(self, batch: Batch, rows: Rows) -> None:
        super().decode(batch, rows)
        outputs = int(batch.arrays()[3].sum())
        if outputs:
            self.seen.append((len(self.held[0]) - len(batch), len(batch), outputs))

    seen: list[tuple[int, int, int]]


def watched(**settings: Any) -> Watched:
    target = Watched(**settings)
    target.seen = []
    return target


def test_sizes_end_with_the_largest() -> None:
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(11) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 11)
    assert sizes_up_to(128)[8:] == (
        10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 60, 63, 64, 65, 72, 80, 96, 128,
    )  # fmt: skip
    with pytest.raises(InputError, match="1 token or more, got 0"):
        sizes_up_to(0)


@pytest.mark.parametrize("memory", MEMORIES)
def test_every_batch_follows_the_same_context_and_has_all_rows(memory: str) -> None:
    target, steps = watched(**MEMORIES[memory]), []
    sizes = (1, 2, 9)
    calibration = calibrate(target, IDS, sizes, 3, advance=lambda: steps.append(1))
    assert calibration.complete
    assert calibration.context == 91
    assert {size: len(times) for size, times in calibration.seconds.items()} == dict.fromkeys(
        sizes, 3
    )
    assert {place for place, _, _ in target.seen} == {91}
    assert all(rows == size for _, size, rows in target.seen)
    assert len(steps) == len(sizes) * (3 + 1)


def test_short_decodes_settle_first_and_long_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        return now

    class Slow(Watched):
        def decode(self, batch: Batch, rows: Rows) -> None:
            nonlocal now
            super().decode(batch, rows)
            now += 0.01 if len(batch) == 1 else 2 * SETTLING

    monkeypatch.setattr("ngramspec.engine.calibration.time.perf_counter", clock)
    target = Slow()
    target.seen = []
    calibration = calibrate(target, IDS, (1, 2), 2)
    assert calibration.medians() == {1: pytest.approx(0.01), 2: pytest.approx(2 * SETTLING)}
    counts = {size: [n for _, n, _ in target.seen].count(size) for size in (1, 2)}
    assert counts == {1: 1 + 2 * 4, 2: 1 + 2}
    assert calibration.table("slow").cost(2) == pytest.approx(2 * SETTLING)
    assert calibration.table("slow").name == "slow"


def test_rounds_have_random_orders_that_a_seed_repeats() -> None:
    def order(seed: int) -> list[int]:
        target = watched()
        calibrate(target, IDS, (1, 2, 3, 4, 5), 3, seed=seed)
        return [size for _, size, _ in target.seen if size]

    def firsts(sizes: list[int]) -> list[int]:
        return [a for a, b in zip(sizes, [0, *sizes], strict=False) if a != b]

    assert firsts(order(1)) == firsts(order(1))
    assert firsts(order(1)) != firsts(order(2))


def test_what_was_measured_before_a_stop_is_kept() -> None:
    asked = iter(range(100))
    calibration = calibrate(watched(), IDS, (1, 2, 3), 5, stopped=lambda: next(asked) >= 5)
    assert not calibration.complete
    assert sum(map(len, calibration.seconds.values())) == 2
    assert list(calibration.seconds) == sorted(calibration.seconds)
    nothing = calibrate(watched(), IDS, (1, 2), 5, stopped=lambda: True)
    assert nothing.seconds == {}
    with pytest.raises(InputError, match="rising batch sizes"):
        nothing.table("x")


@pytest.mark.parametrize(
    ("ids", "sizes", "rounds", "message"),
    [
        (IDS, (1,), 0, "rounds must be >= 1, got 0"),
        (IDS, (), 1, "sizes must rise from 1 or more"),
        (IDS, (2, 1), 1, "sizes must rise from 1 or more"),
        (IDS, (0, 1), 1, "sizes must rise from 1 or more"),
        (IDS, (1, 65), 1, "65 tokens is more than the target's 64"),
        (IDS[:4], (1, 5), 1, "need 5 tokens or more and at most the context of 256, got 4"),
        (np.resize(IDS, 300), (1,), 1, "at most the context of 256, got 300"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    ids: Any, sizes: tuple[int, ...], rounds: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(FakeTarget(), ids, sizes, rounds)


def test_a_target_that_fails_is_an_error() -> None:
    target = FakeTarget()
    target.fail_next = BackendError("broken")
    with pytest.raises(BackendError, match="broken"):
        calibrate(target, IDS, (1,), 1)


class Timed(Watched):
    """Decodes take as long as `cost` says. slow: numbers of those that take ten times as long."""

    def decode(self, batch: Batch, rows: Rows) -> None:
        super().decode(batch, rows)
        self.decodes += 1
        self.now += self.cost(len(batch)) * (10 if self.decodes in self.slow else 1)

    decodes = 0
    slow: frozenset[int] = frozenset()
    cost: Callable[[int], float]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Timed]:
    def make(cost: Callable[[int], float], **settings: Any) -> Timed:
        target = Timed(**{"exact_batch": 0, **settings})
        target.seen, target.cost = [], cost
        monkeypatch.setattr("ngramspec.engine.calibration.time.perf_counter", lambda: target.now)
        return target

    return make


def affine(tokens: int) -> float:
    return 0.001 * (1 + 0.1 * tokens)


def test_a_fast_target_is_measured_whole(timed: Callable[..., Timed]) -> None:
    target = timed(affine, max_batch=512, context_size=1024)
    calibration = calibrate_within(target, 2.0)
    assert calibration is not None
    assert calibration.complete
    assert calibration.context == QUICK_CONTEXT
    assert list(calibration.seconds) == sorted(QUICK_SIZES)
    assert calibration.medians() == {n: pytest.approx(affine(n)) for n in QUICK_SIZES}
    assert len(target.held[0]) == 0
    assert target.now < 2.0


def test_what_other_programs_slow_down_is_measured_again(timed: Callable[..., Timed]) -> None:
    target = timed(affine, max_batch=512, context_size=1024)
    target.slow = frozenset(range(5, 60, 3))
    calibration = calibrate_within(target, 2.0)
    assert calibration is not None
    assert calibration.medians() == {n: pytest.approx(affine(n)) for n in calibration.seconds}
    assert {1, 2, 8, 64} <= calibration.seconds.keys()
    assert calibration.scattered > 0.25
    assert calibrate_within(timed(affine, max_batch=512, context_size=1024), 2.0).scattered == 0


def test_a_size_that_no_second_sample_confirms_is_left_out(timed: Callable[..., Timed]) -> None:
    samples = iter(range(10_000))
    target = timed(lambda n: affine(n) * (2.0 ** next(samples) if n == 4 else 1.0), max_batch=16)
    calibration = calibrate_within(target, 1e9)
    assert calibration is not None
    assert not calibration.complete
    assert list(calibration.seconds) == [1, 2, 3, 6, 8, 12, 16]


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 3.0])
def test_a_slow_target_is_measured_as_far_as_there_is_time(
    timed: Callable[..., Timed], seconds: float
) -> None:
    target = timed(lambda n: 0.01 * n, max_batch=512, context_size=1024)
    calibration = calibrate_within(target, seconds)
    assert target.now <= 0.01 + seconds + 1e-9  # the first decode does not count
    assert (calibration is None) == (seconds < 1.0)
    if calibration is not None:
        assert not calibration.complete
        assert {1, 8} <= calibration.seconds.keys()


def test_of_a_long_decode_one_sample_is_enough_where_there_is_no_time_for_two(
    timed: Callable[..., Timed],
) -> None:
    target = timed(lambda n: 0.01 * n, max_batch=512, context_size=1024)
    costs = calibrate_within(target, 2.6)
    assert costs is not None
    assert max(costs.seconds) == 64  # takes 0.64 s
    assert costs.seconds[64] == pytest.approx((0.64,))


def test_a_target_that_is_too_small_to_tell_is_not_measured(timed: Callable[..., Timed]) -> None:
    for small in ({"max_batch": 7}, {"context_size": 1}, {"context_size": 8}):
        target = timed(affine, **small)
        assert calibrate_within(target, 2.0) is None
        assert target.decodes == 0
    calibration = calibrate_within(timed(affine, max_batch=64, exact_batch=16), 2.0)
    assert calibration is not None
    assert max(calibration.seconds) == 16
