"""AutoPolicy against its slow twin: the same lengths and the same knowledge after any calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.machines import SETTINGS
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec._native.policy.costs import PassCosts
from ngramspec.costs import PROFILES, CostTable
from reference import auto, auto_costs

CLOSE = 1e-9  # of values in tokens: native and twin add in another order
STEPS = CostTable((*((b, 1.0 + 0.3 * b) for b in range(1, 9)), (9, 2.0), (40, 2.5), (41, 9.0)))
TABLES = [None, STEPS, *PROFILES.values()]
CLAIMS = st.one_of(
    st.floats(0, 1, width=32), st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9375, 0.984375, 1.0])
)
CHAINS = st.one_of(
    st.lists(CLAIMS, max_size=12),
    st.tuples(CLAIMS, st.integers(0, 70)).map(lambda pair: [pair[0]] * pair[1]),
)
SOURCES = st.sampled_from(["a", "b"])


def floats(claims: list[float]) -> np.ndarray:
    return np.array(claims, dtype=np.float32)


class Pair(RuleBasedStateMachine):
    """Every call goes to both."""

    @initialize(
        table=st.sampled_from(TABLES),
        max_draft=st.sampled_from([0, 1, 5, 64]),
        fixed=st.sampled_from([None, None, None, 0, 1]),
    )
    def start(self, table: CostTable | None, max_draft: int, fixed: int | None) -> None:
        self.max_draft = max_draft
        self.fixed = fixed = fixed if fixed is None or fixed <= max_draft else None
        self.native = AutoPolicy(max_draft, table, fixed)
        self.twin = auto.AutoPolicy(max_draft, table, fixed)
        self.step(2, 3, 0.0)  # a rate that is no round number: few choices are a matter of rounding

    @rule(
        source=SOURCES,
        claims=CHAINS,
        room=st.integers(-1, 70),
        batch=st.sampled_from([(1, 1), (9, 8), (40, 1), (1000, 3), (2000, 2)]),
        streak=st.sampled_from([None, 0, 1, 7, 40]),
    )
    def choose(
        self,
        source: str,
        claims: list[float],
        room: int,
        batch: tuple[int, int],
        streak: int | None,
    ) -> None:
        length = self.native.choose(0, source, floats(claims), room, *batch, streak)
        choice = self.twin.choose(source, claims, room, *batch, streak)
        if length != choice.length:
            assert choice.values[length] == pytest.approx(choice.values[choice.length], abs=CLOSE)

    @rule(
        chains=st.lists(st.tuples(SOURCES, CHAINS, st.integers(-1, 70)), max_size=4),
        more=st.integers(0, 3),
        room=st.integers(-2, 200),
        streaks=st.lists(st.sampled_from([None, 0, 1, 7, 40]), min_size=4, max_size=4),
    )
    def choose_many(
        self,
        chains: list[tuple[str, list[float], int]],
        more: int,
        room: int,
        streaks: list[int | None],
    ) -> None:
        streaks = streaks[: len(chains)]
        slots = len(chains) + more
        batch = slots + more
        offers = [(source, floats(claims), most) for source, claims, most in chains]
        lengths = self.native.choose_many(offers, batch + room, batch, slots, streaks)
        assert sum(lengths) <= max(0, room)
        expected = self.twin.choose_many(chains, batch + room, batch, slots, streaks)
        if lengths != expected:
            assert self.worth(chains, lengths, batch, slots) == pytest.approx(
                self.worth(chains, expected, batch, slots), abs=CLOSE
            )

    def worth(
        self, chains: list[tuple[str, list[float], int]], lengths: list[int], base: int, slots: int
    ) -> float:
        """What lengths bring all slots beyond no drafts, by the twin."""
        costs = self.twin.costs
        total = self.twin.rate * (costs.at(base) - costs.at(base + sum(lengths)))
        for (source, claims, most), length in zip(chains, lengths, strict=True):
            others = base + sum(lengths) - length
            worths = self.twin.consider(source, claims, most, others, slots).worths
            total += worths[length] - worths[0]
        return total

    @rule(source=SOURCES, claims=CHAINS, ends=st.tuples(st.integers(0, 70), st.integers(0, 70)))
    def learn(self, source: str, claims: list[float], ends: tuple[int, int]) -> None:
        right, num_known = (min(end, len(claims)) for end in sorted(ends))
        self.native.learn(0, source, floats(claims), right, num_known)
        self.twin.learn(source, claims, right, num_known)

    @rule(
        tokens=st.sampled_from([0, 1, 1, 2, 3, 8, 9, 40, 65, 700, 1024, 1025]),
        seconds=st.one_of(
            st.sampled_from([0.0, -1.0, float("nan"), float("inf")]), st.floats(1e-3, 1.0)
        ),
        times=st.sampled_from([1, 1, 3, 20, 600]),
    )
    def observe(self, tokens: int, seconds: float, times: int) -> None:
        for _ in range(times):
            self.native.observe(tokens, seconds)
            self.twin.observe(tokens, seconds)

    @rule(
        emitted=st.integers(0, 70),
        batch=st.sampled_from([1, 2, 9, 65, 3000]),
        seconds=st.sampled_from([0.0, 0.001, 0.1, 9.0, float("nan")]),
    )
    def step(self, emitted: int, batch: int, seconds: float) -> None:
        self.native.step(emitted, batch, seconds)
        self.twin.step(emitted, batch, seconds)

    @invariant()
    def equal_knowledge(self) -> None:
        if not hasattr(self, "native"):
            return
        assert self.native.rate == pytest.approx(self.twin.rate, rel=CLOSE)
        table = self.native.costs()
        costs = [cost for _, cost in table.costs]
        twin = self.twin.costs
        assert costs == pytest.approx([twin.pace * twin.at(b) for b, _ in table.costs], rel=CLOSE)
        claims = [0.0, 0.02, 0.3, 0.6, 0.9, 0.97, 0.999, 1.0]
        for source in ("a", "b"):
            corrected = self.native.calibrated(source, floats(claims)).tolist()
            exact = [float(claim) for claim in floats(claims)]
            assert corrected == pytest.approx(self.twin.calibrated(source, exact), abs=CLOSE)


Pair.TestCase.settings = SETTINGS
TestPair = Pair.TestCase


@SETTINGS
@given(
    claims=st.lists(CLAIMS, min_size=1, max_size=70),
    prices=st.lists(st.floats(0.01, 3), min_size=3, max_size=71),
    room=st.integers(1, 70),
)
def test_any_costs_and_chains_give_the_best_length(
    claims: list[float], prices: list[float], room: int
) -> None:
    table = CostTable(tuple(enumerate(prices, 1)))
    native, twin = AutoPolicy(70, table), auto.AutoPolicy(70, table)
    length = native.choose(0, "a", floats(claims), room)
    choice = twin.choose("a", claims, room)
    assert 0 <= length <= min(room, len(claims))
    assert choice.values[min(length, len(choice.values) - 1)] == pytest.approx(
        choice.values[choice.length], abs=CLOSE
    )


@SETTINGS
@given(
    seed=st.integers(0, 1 << 32),
    slots=st.integers(2, 8),
    room=st.integers(0, 80),
    dear=st.floats(0.02, 0.6),
)
def test_slots_that_share_any_pass_choose_alike(
    seed: int, slots: int, room: int, dear: float
) -> None:
    # Of random numbers with all their digits: two choices are never worth the same.
    rng = np.random.default_rng(seed)
    rises = dear * rng.exponential(size=120) * (rng.random(120) < rng.choice([0.2, 1.0]))
    table = CostTable(tuple(enumerate((1 + np.cumsum(rises)).tolist(), 1)))
    native, twin = AutoPolicy(24, table), auto.AutoPolicy(24, table)
    emitted, batch = int(rng.integers(1, 12)), int(rng.integers(1, 30))
    for policy in (native, twin):
        policy.step(emitted, batch)
    sure = rng.beta(rng.choice([1, 8]), 1, (slots, 30)).astype(np.float32)
    chains = [
        ("ab"[i % 2], sure[i, : rng.integers(0, 30)], int(rng.integers(0, 30)))
        for i in range(slots)
    ]
    lengths = native.choose_many(chains, slots + room)
    exact = [(source, claims.tolist(), most) for source, claims, most in chains]
    assert lengths == twin.choose_many(exact, slots + room)
    rows = slots + int(rng.integers(0, 4))
    lengths = native.choose_many(chains, slots + room, padded_rows=rows)
    assert lengths == twin.choose_many(exact, slots + room, padded_rows=rows)


@SETTINGS
@given(
    table=st.sampled_from(TABLES),
    unit=st.sampled_from([1.0, 1e-3]),
    seen=st.lists(
        st.tuples(st.integers(1, 1030), st.floats(0.05, 50), st.sampled_from([1, 2, 9, 40, 600])),
        max_size=12,
    ),
)
def test_costs_of_all_sizes_are_learnt_alike(
    table: CostTable | None, unit: float, seen: list[tuple[int, float, int]]
) -> None:
    native, twin = PassCosts(table), auto_costs.PassCosts(table)
    for tokens, seconds, times in seen:
        for _ in range(times):
            native.observe(tokens, seconds * unit)
            twin.observe(tokens, seconds * unit)
    sizes = [*range(1, 1025), 1025, 5000]
    costs = [native.cost(tokens) for tokens in sizes]
    assert costs == pytest.approx([twin.pace * twin.at(tokens) for tokens in sizes], rel=CLOSE)
    assert min(costs) > 0
    assert native.timed == twin.timed


def expected_tokens(p: list[float], length: int) -> Any:
    """What a draft brings, by cases: it is right for exactly so many tokens."""
    total = 0.0
    for right in range(length + 1):
        fails = 1 - p[right] if right < length else 1.0
        total += float(np.prod(p[:right])) * fails * (right + 1)
    return total


@SETTINGS
@given(p=st.lists(CLAIMS, min_size=1, max_size=10))
def test_the_twin_counts_tokens_case_by_case(p: list[float]) -> None:
    worths = auto.worths(p, 0, [0.0] * (len(p) + 1))
    expected = [expected_tokens(p, k) for k in range(len(p) + 1)]
    assert worths == pytest.approx(expected, abs=CLOSE)
