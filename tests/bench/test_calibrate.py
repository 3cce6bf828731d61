"""Measuring batches on a made-up target, and taking them back from any kind of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.bench.calibrate import SETTLING, calibrate, sizes_up_to
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
    found = calibrate(target, IDS, sizes, 3, advance=lambda: steps.append(1))
    assert found.complete
    assert found.context == 91
    assert {size: len(times) for size, times in found.seconds.items()} == dict.fromkeys(sizes, 3)
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

    monkeypatch.setattr("ngramspec.bench.calibrate.time.perf_counter", clock)
    target = Slow()
    target.seen = []
    found = calibrate(target, IDS, (1, 2), 2)
    assert found.medians() == {1: pytest.approx(0.01), 2: pytest.approx(2 * SETTLING)}
    counts = {size: [n for _, n, _ in target.seen].count(size) for size in (1, 2)}
    assert counts == {1: 1 + 2 * 4, 2: 1 + 2}
    assert found.table("slow").cost(2) == pytest.approx(2 * SETTLING)
    assert found.table("slow").name == "slow"


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
    found = calibrate(watched(), IDS, (1, 2, 3), 5, stopped=lambda: next(asked) >= 5)
    assert not found.complete
    assert sum(map(len, found.seconds.values())) == 2
    assert list(found.seconds) == sorted(found.seconds)
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
