"""PassCosts: a table as given, corrected where passes were timed, in its shape everywhere else."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.policy.costs import PassCosts
from ngramspec.costs import PROFILES, CostTable
from ngramspec.errors import InputError

JUMP = CostTable((*((b, 0.5 * b) for b in range(1, 64)), (64, 8.0), (65, 8.1)), "jump")
BAD_TIMES = [0.0, -1.0, float("nan"), float("inf")]


def timed(costs: PassCosts, times: dict[int, float], rounds: int = 40) -> PassCosts:
    for _ in range(rounds):
        for tokens, seconds in times.items():
            costs.observe(tokens, seconds)
    return costs


@pytest.mark.parametrize("table", [*PROFILES.values(), JUMP])
def test_a_table_without_a_clock_counts_as_it_is(table: CostTable) -> None:
    costs = PassCosts(table)
    sizes = [1, 2, 7, 63, 64, 65, 300, 1024]
    assert [costs.cost(b) for b in sizes] == pytest.approx([table.cost(b) for b in sizes])
    assert not costs.timed
    current = costs.table()
    assert [current.cost(b) for b in sizes] == pytest.approx([table.cost(b) for b in sizes])
    assert current.name == table.name


def test_without_a_table_a_token_costs_a_tenth_of_a_pass() -> None:
    costs = PassCosts()
    assert [costs.cost(b) for b in (1, 2, 11)] == pytest.approx([1.0, 1.1, 2.0])
    assert costs.cost(3000) == pytest.approx(1 + 299.9)


def test_one_time_sets_the_unit() -> None:
    costs = timed(PassCosts(JUMP), {1: 0.01}, 1)
    for size in (1, 2, 63, 64, 65, 900):
        assert costs.cost(size) == pytest.approx(JUMP.cost(size) / JUMP.cost(1) * 0.01, rel=0.05)
    assert costs.timed


def test_sizes_that_were_seen_are_corrected_and_jumps_stay() -> None:
    costs = timed(PassCosts(JUMP), {1: 0.01, 10: 0.1, 63: 0.7, 64: 0.12})
    assert costs.cost(63) == pytest.approx(0.7, rel=0.02)
    assert costs.cost(64) == pytest.approx(0.12, rel=0.02)
    assert costs.cost(62) > 0.5  # near 63 on its side of the jump
    assert costs.cost(66) < 0.2  # and near 64 on the other


@pytest.mark.parametrize("prior", [None, "cpu", "moe"])
@pytest.mark.parametrize("true", PROFILES)
def test_steepness_is_learnt_from_few_sizes(prior: str | None, true: str) -> None:
    table = PROFILES[true]
    costs = PassCosts(prior and PROFILES[prior])
    timed(costs, {b: 1e-3 * table.cost(b) for b in (1, 4, 9)})
    for size in (2, 6, 12, 16):
        assert costs.cost(size) == pytest.approx(1e-3 * table.cost(size), rel=0.25)


def test_noise_does_not_tilt_a_flat_table() -> None:
    rng = np.random.default_rng(3)
    table = PROFILES["h100-8b"]
    costs = PassCosts(table)
    for _ in range(300):
        size = int(rng.integers(1, 5))
        costs.observe(size, 1e-3 * table.cost(size) * float(np.exp(0.1 * rng.normal())))
    for size in (1, 3, 10, 40, 65):
        assert costs.cost(size) == pytest.approx(1e-3 * table.cost(size), rel=0.12)


def test_slow_passes_count_a_little_and_a_slow_start_is_forgotten() -> None:
    costs = timed(PassCosts(), {1: 0.01})
    costs.observe(1, 100.0)
    assert costs.cost(1) < 0.016
    costs = timed(PassCosts(), {1: 5.0}, 1)  # the first pass sets things up
    assert timed(costs, {1: 0.01}, 8).cost(1) == pytest.approx(0.01, rel=0.3)


def test_an_accident_at_a_size_that_is_seldom_seen_is_forgotten() -> None:
    costs = timed(PassCosts(), {1: 0.01, 2: 0.011, 3: 0.012})
    costs.observe(20, 0.2)
    assert costs.cost(20) > 0.07
    assert timed(costs, {1: 0.01, 2: 0.011, 3: 0.012}, 700).cost(20) < 0.04


def test_times_follow_a_machine_that_slows_down() -> None:
    costs = timed(PassCosts(), {1: 0.01, 5: 0.02})
    assert timed(costs, {1: 0.02, 5: 0.04}, 120).cost(3) == pytest.approx(0.03, rel=0.1)


def test_sizes_that_are_not_seen_any_more_follow_those_that_are() -> None:
    costs = timed(PassCosts(), {1: 0.01, 12: 0.07})
    timed(costs, {1: 0.03}, 40)  # a longer context, say
    assert costs.cost(1) == pytest.approx(0.03, rel=0.05)
    assert costs.cost(12) == pytest.approx(0.21, rel=0.2)
    timed(costs, {1: 0.03, 12: 0.15}, 120)
    assert costs.cost(12) == pytest.approx(0.15, rel=0.05)


@pytest.mark.parametrize("seconds", BAD_TIMES)
def test_times_that_are_none_teach_nothing(seconds: float) -> None:
    costs = PassCosts()
    costs.observe(1, seconds)
    costs.observe(0, 1.0)
    costs.observe(1025, 1.0)
    assert not costs.timed
    assert costs.cost(1) == 1.0


def test_the_table_that_is_known_can_be_given_again() -> None:
    costs = timed(PassCosts(PROFILES["moe"]), {1: 0.01, 9: 0.03, 64: 0.11})
    again = PassCosts(costs.table())
    for size in (1, 5, 9, 30, 64, 65, 200, 1024):
        assert again.cost(size) == pytest.approx(costs.cost(size), rel=0.02)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="costs must be"):
        PassCosts({1: 1.0})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tokens must be >= 1"):
        PassCosts().cost(0)


def test_the_policy_keeps_its_rate_when_the_clock_sets_a_unit() -> None:
    policy = AutoPolicy(costs=PROFILES["cpu"])
    for _ in range(100):
        policy.step(2, 3)
    before = policy.rate * policy.costs().cost(1)
    policy.observe(1, 0.005)
    assert policy.rate * policy.costs().cost(1) == pytest.approx(before)
    assert policy.costs().cost(1) == 0.005
    policy.step(2, 3, 1e9)  # a pause counts as four passes
    assert policy.rate * policy.costs().cost(1) > 0.8 * before


def test_without_knowing_what_no_draft_costs_one_pass_in_eight_has_none() -> None:
    policy = AutoPolicy()
    chain = np.full(9, 0.99, dtype=np.float32)
    lengths = []
    for _ in range(120):
        lengths.append(policy.choose(0, "a", chain, 9))
        policy.observe(1 + lengths[-1], 0.01 + 0.001 * lengths[-1])
        policy.step(1 + lengths[-1], 1 + lengths[-1], 0.01 + 0.001 * lengths[-1])
    bare = [i for i, length in enumerate(lengths) if not length]
    assert bare == [7, 15, 23, 31, 39, 47]
    assert policy.choose_many([("a", chain, 9)] * 2, capacity=99) != [0, 0]
