"""AutoPolicy on synthetic text: never much slower than no drafts, and near what an oracle makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.draft_traces import (
    LONGEST,
    Draw,
    chain,
    honest,
    phases,
    run,
    run_slots,
)
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import PROFILES, CostTable
from reference import auto

STEPS = 3000
NO_LOSS = 0.98
CURVES = {
    **PROFILES,
    # SmolLM2-135M Q4_1 on one thread of a Zen 5: a pass takes longer than its tokens one by one.
    "dear": CostTable(((1, 1.0), (2, 2.3), (4, 4.1), (8, 7.1), (16, 12.5), (32, 24.4))),
    "jump": CostTable(tuple((b, 1 + 0.35 * b if b < 32 else 12 + 0.05 * b) for b in range(1, 200))),
}
TEXTS: dict[str, Draw] = {
    "no chains": chain(0.5, 0.5, 0),
    "never right": chain(0.9, 0.0),
    "never right, doubtful": chain(0.6, 0.0),
    "claims 0.9, true 0.1": chain(0.9, 0.1),
    "short, claims 0.9, true 0.1": chain(0.9, 0.1, 8),
    "sure of what is wrong": chain(0.999, 0.02),
    "fast phases": phases(200, chain(0.9, 0.98), chain(0.9, 0.02)),
    "slow phases": phases(1000, chain(0.9, 0.02), chain(0.9, 0.98)),
    "honest": honest,
    "0.98": chain(0.98, 0.98),
    "shy": chain(0.3, 0.98),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("curve", CURVES)
def test_drafts_never_cost_much(curve: str, text: str) -> None:
    costs = CURVES[curve]
    table = run(AutoPolicy(costs=costs), TEXTS[text], costs, STEPS)
    clock = run(AutoPolicy(), TEXTS[text], costs, STEPS, noise=0.1)
    both = run(AutoPolicy(costs=costs), TEXTS[text], costs, STEPS, noise=0.1)
    none = 1 / costs.cost(1)
    assert min(table.rate, both.rate) >= NO_LOSS * none
    # Its first drafts are sent before any cost is known.
    assert clock.rate >= (0.97 if curve == "dear" else NO_LOSS) * none


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("clock", [False, True])
def test_drafts_of_many_slots_never_cost_much(curve: str, clock: bool) -> None:
    costs = CURVES[curve]
    for draws in (
        [chain(0.9, 0.0)] * 4,
        [chain(0.9, 0.1)] * 4,
        [chain(0.9, 0.0), chain(0.98, 0.98), honest, chain(0.5, 0.5)],
        [chain(0.98, 0.98)] * 8,
    ):
        policy = AutoPolicy(costs=None if clock else costs)
        figures = run_slots(policy, draws, costs, STEPS, clock=clock)
        assert figures.rate >= NO_LOSS * len(draws) / costs.cost(len(draws))


class Oracle:
    """Knows that claims are true, the costs and a rate; chooses by the written-out rule."""

    def __init__(self, costs: CostTable, rate: float) -> None:
        self.prices = [rate * cost for cost in costs.dense(LONGEST + 1)]

    def choose(self, slot: int, source: str, claims: np.ndarray, room: int) -> int:
        return auto.best_length(claims.astype(float).tolist(), self.prices).length

    def learn(self, *_: Any) -> None:
        """Know it already."""

    step = observe = learn


@pytest.mark.parametrize("curve", CURVES)
def test_honest_chains_are_used_as_an_oracle_uses_them(curve: str) -> None:
    costs, steps = CURVES[curve], 1200
    rates = [run(AutoPolicy(costs=costs), honest, costs, steps, seed=s).rate for s in range(6)]
    middle = float(np.mean(rates))
    best = 0.0
    for rate in (0.8 * middle, middle, 1.2 * middle):
        best_rates = [run(Oracle(costs, rate), honest, costs, 400, seed=s).rate for s in range(4)]
        best = max(best, float(np.mean(best_rates)))
    assert middle >= 0.95 * best


@pytest.mark.parametrize("curve", CURVES)
def test_sure_chains_come_near_the_best_fixed_length(curve: str) -> None:
    costs = CURVES[curve]
    best = max((1 - 0.98 ** (k + 1)) / 0.02 / costs.cost(1 + k) for k in range(LONGEST + 1))
    sure = chain(0.98, 0.98)
    rates = [run(AutoPolicy(costs=costs), sure, costs, STEPS, seed=s).rate for s in range(4)]
    assert float(np.mean(rates)) >= 0.95 * best


@pytest.mark.parametrize("short", [1, 2])
def test_long_drafts_are_tried_where_short_ones_do_not_pay(short: int) -> None:
    costs = CostTable(tuple((b, b if b < 9 else 9 + 0.05 * (b - 9)) for b in range(1, 200)))
    text = phases(300, chain(0.98, 0.98, short), chain(0.98, 0.98))
    lengths = [run(AutoPolicy(), text, costs, 600, s, noise=0.1).lengths for s in range(5)]
    assert np.median([np.mean(series[400:]) for series in lengths]) > 9


@pytest.mark.parametrize("curve", PROFILES)
def test_it_falls_silent_where_nothing_repeats_and_wakes_up_where_it_does(curve: str) -> None:
    costs = CURVES[curve]
    policy = AutoPolicy(costs=costs)
    silent = run(policy, chain(0.9, 0.0), costs, 1000).lengths[-500:]
    assert sum(costs.cost(1 + length) for length in silent) < 1.01 * 500 * costs.cost(1)
    awake = run(policy, chain(0.9, 0.98), costs, 100).lengths[-50:]
    assert np.mean(awake) >= 0.9
    asleep = run(policy, chain(0.9, 0.0), costs, 400).lengths[-100:]
    assert sum(costs.cost(1 + length) for length in asleep) < 1.02 * 100 * costs.cost(1)


def test_a_source_that_is_right_is_not_silenced_by_one_that_is_not() -> None:
    costs = CURVES["moe"]
    policy = AutoPolicy(costs=costs)
    figures = run_slots(policy, [chain(0.9, 0.0), chain(0.95, 0.95)], costs, 1500)
    assert figures.rate > 1.5 * 2 / costs.cost(2)
    for source, truth in (("source 0", 0.0), ("source 1", 0.95)):
        claim = np.full(1, 0.9 if truth == 0 else 0.95, dtype=np.float32)
        assert policy.calibrated(source, claim)[0] == pytest.approx(truth, abs=0.06)
