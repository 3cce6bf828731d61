"""Arbiter: what it asks of sources that take time, beside its slow twin, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.machines import SETTINGS
from ngramspec._native.policy.arbiter import Arbiter, Asked, FreeDraft, Terms
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import PROFILES, CostTable
from ngramspec.errors import InputError
from reference import arbiter, auto

CLOSE = 1e-9  # tokens: native and twin add in another order
LINE = CostTable(((1, 1.0), (2, 1.1)), "line")
DEAR = CostTable(((1, 1.0), (2, 2.0)), "dear")
NONE = np.empty(0, np.float32)
CHAINS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9375, 1.0]), max_size=8)


def floats(claims: list[float]) -> np.ndarray:
    return np.array(claims, dtype=np.float32)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Claims and parents, of random numbers: two choices are never worth the same."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    parents = [int(rng.integers(max(-1, i - 4), i)) for i in range(rng.integers(1, 12))]
    claims = rng.beta(2, 1, len(parents)).astype(np.float32)
    for parent in {*parents}:
        own = [i for i, other in enumerate(parents) if other == parent]
        claims[own] /= max(1.0, claims[own].sum() * 1.01)
    return [float(p) for p in claims], parents


FREE = st.one_of(st.tuples(CHAINS, st.none()), trees())


class Pair(RuleBasedStateMachine):
    """Every call goes to both."""

    @initialize(table=st.sampled_from([None, LINE, DEAR, *PROFILES.values()]))
    def start(self, table: CostTable | None) -> None:
        policy = AutoPolicy(64, table)
        slow = auto.AutoPolicy(64, table)
        policy.step(2, 3)
        slow.step(2, 3)
        self.policies = policy, slow
        self.native, self.twin = Arbiter(policy), arbiter.Arbiter(slow)
        for name in "ab":
            self.set_price(name, 0.05, 0.05)

    @rule(
        source=st.sampled_from("ab"),
        start=st.sampled_from([0.0, 0.05, 1.0]),
        token=st.sampled_from([0.0, 0.03, 0.3]),
    )
    def set_price(self, source: str, start: float, token: float) -> None:
        for made in (self.native, self.twin):
            made.price(source, start, token)

    @rule(
        slot=st.integers(0, 2),
        source=st.sampled_from("ab"),
        most=st.integers(0, 9),
        room=st.integers(-1, 20),
        free=FREE,
        chosen=st.integers(0, 8),
        batch=st.sampled_from([(1, 1), (9, 8), (30, 2), (1023, 3)]),
        sharing=st.integers(1, 3),
        extends=st.booleans(),
        backlog=st.sampled_from([0.0, 0.1, 5.0]),
        branches=st.integers(1, 4),
        stops=st.booleans(),
        shortest=st.sampled_from([0, 0, 3, 9]),
        left=st.sampled_from([1, 20, 3000]),
        drafted=st.lists(st.sampled_from([0.3, 0.7, 0.95, 1.0]), max_size=8),
    )
    def ask(
        self,
        slot: int,
        source: str,
        most: int,
        room: int,
        free: tuple[list[float], list[int] | None],
        chosen: int,
        batch: tuple[int, int],
        sharing: int,
        extends: bool,
        backlog: float,
        branches: int,
        stops: bool,
        shortest: int,
        left: int,
        drafted: list[float],
    ) -> None:
        claims, parents = free
        chosen = min(chosen, len(claims))
        links = None if parents is None else np.array(parents, np.int32)
        draft = FreeDraft("free", floats(claims), np.arange(chosen, dtype=np.int32), links)
        ends = (branches, shortest, left)
        terms = Terms(room, most, *batch, *ends, sharing, extends, stops, backlog)
        found = self.native.ask(slot, source, draft, terms)
        ways = (chosen, *batch, sharing, extends, backlog, parents, branches, stops, shortest, left)
        wanted = self.twin.ask(slot, source, most, room, "free", claims, *ways)
        assert found == wanted
        assert self.native.pays(slot, source, drafted) == self.twin.pays(slot, source, drafted)
        assert found.after <= chosen
        assert parents is not None or found.after in (0, chosen)
        assert found.tokens <= most
        assert found.after + found.tokens <= max(room, 0)
        assert not found.beside or (not found.after and branches > 1)
        if found.tokens and not found.trial:
            assert (chosen if found.after or found.beside else 0) + found.tokens >= shortest

    @rule(
        slot=st.integers(0, 2),
        source=st.sampled_from("ab"),
        right=st.integers(0, 9),
        more=st.integers(0, 3),
        apart=st.booleans(),
    )
    def learn(self, slot: int, source: str, right: int, more: int, apart: bool) -> None:
        for made in (self.native, self.twin):
            made.learn(slot, source, right, right + more, apart)

    @rule(emitted=st.integers(0, 9), tokens=st.sampled_from([1, 4, 40]))
    def step(self, emitted: int, tokens: int) -> None:
        for policy in self.policies:
            policy.step(emitted, tokens)

    @rule(seconds=st.sampled_from([0.0, 0.5, 20.0]))
    def spend(self, seconds: float) -> None:
        for policy in self.policies:
            policy.spend(seconds)

    @rule(slot=st.integers(0, 2))
    def begin(self, slot: int) -> None:
        self.native.begin(slot)
        self.twin.begin(slot)

    @invariant()
    def same_expectations(self) -> None:
        for name in "ab":
            for slot in range(3):
                wanted = self.twin.sources[name].expected(slot)
                found = self.native.expected(slot, name, 9)[[0, 1, 2, 4, 8]]
                assert found == pytest.approx(wanted, abs=1e-6)


TestPair = Pair.TestCase
TestPair.settings = SETTINGS


def ask(made: Arbiter, claims: np.ndarray = NONE, most: int = 4, **terms: Any) -> Asked:
    """Ask beside a free draft, all of which would be sent."""
    draft = FreeDraft("free", claims, np.arange(len(claims), dtype=np.int32))
    return made.ask(0, "model", draft, Terms(64, most, **terms))


def asked(made: Arbiter, claims: np.ndarray = NONE) -> tuple[int, int, bool]:
    return ask(made, claims)[:3]


def arbiter_of(table: CostTable, start: float = 0.05, per_token: float = 0.05) -> Arbiter:
    made = Arbiter(AutoPolicy(64, table))
    made.price("model", start, per_token)
    made.begin(0)
    return made


def test_a_source_that_is_right_is_asked_for_all_it_drafts() -> None:
    made = arbiter_of(LINE)
    for _ in range(9):
        made.learn(0, "model", 4, 4)
    assert asked(made) == (0, 4, False)


def test_it_goes_on_where_a_free_draft_ends() -> None:
    made = arbiter_of(LINE)
    for _ in range(9):
        made.learn(0, "model", 4, 4)
    assert asked(made, floats([0.99, 0.99])) == (2, 4, False)
    assert asked(made, floats([0.1, 0.1]))[0] == 0, "a free draft that is wrong hides it"


def test_a_source_that_is_wrong_rests_but_for_trials() -> None:
    made = arbiter_of(LINE)
    found = []
    for _ in range(400):
        found.append(asked(made))
        if found[-1][1]:
            made.learn(0, "model", 0, found[-1][1])
    trials = [one for one in found[20:] if one[1]]
    assert set(trials) == {(0, 1, True)}
    assert 0.006 * 380 < len(trials) * 0.1 <= 0.008 * 380 + 2, "a hundredth of the time at most"


def test_a_dear_source_is_never_tried_while_it_could_not_pay() -> None:
    made = arbiter_of(DEAR, start=3.0)
    assert {asked(made) for _ in range(2000)} == {(0, 0, False)}


def test_a_source_that_gets_better_is_soon_asked_again() -> None:
    made = arbiter_of(LINE)
    for _ in range(50):
        made.learn(0, "model", 0, 1)
    waited = 0
    while asked(made)[1] != 4:
        waited += 1
        assert waited < 60
        made.learn(0, "model", 1, 1)


def test_a_source_that_is_right_in_runs_is_left_and_found_within_a_few_drafts() -> None:
    made = arbiter_of(LINE)
    late: dict[bool, list[int]] = {True: [], False: []}
    for run in range(40):
        right, waited = run % 2 == 0, 0
        for _ in range(60):
            _, tokens, trial = asked(made)
            if tokens:
                made.learn(0, "model", tokens if right else 0, tokens)
            waited += (trial or not tokens) if right else (tokens > 0 and not trial)
        late[right].append(waited)
    assert np.mean(late[False][-10:]) <= 8, "drafts that were paid for after a run"
    assert np.mean(late[True][-10:]) <= 20, "passes before a run was found"


def test_slots_that_share_a_draft_share_its_price() -> None:
    made = arbiter_of(LINE, start=0.8, per_token=0.01)
    for _ in range(9):
        made.learn(0, "model", 3, 4)
    assert ask(made, batch_tokens=8, decoding=8).tokens == 0
    assert ask(made, batch_tokens=8, decoding=8, sharing=8).tokens > 1


def test_drafting_that_made_the_text_slow_does_not_look_cheap_for_that() -> None:
    made = arbiter_of(DEAR, start=0.0, per_token=1.0)  # a token takes what a pass takes
    for _ in range(20):
        made.learn(0, "model", 4, 4)
        made.policy.step(1, 1)
        made.policy.spend(20.0)
    assert asked(made) == (0, 0, False)


def test_reading_the_text_is_paid_by_many_drafts_and_trials() -> None:
    made = arbiter_of(LINE)
    for _ in range(9):
        made.learn(0, "model", 4, 4)
    assert ask(made, backlog=20.0, left=150).tokens == 4
    assert ask(made, backlog=20.0, left=15).tokens == 0
    assert ask(made, backlog=200.0, left=150).tokens == 0
    assert ask(made, backlog=200.0, left=1500).tokens == 4
    for _ in range(50):
        made.learn(0, "model", 0, 1)
    trials = []
    for step in range(400):
        if ask(made, backlog=20.0, left=150).trial:
            made.learn(0, "model", 0, 1)
            trials.append(step)
    assert 2 <= len(trials) <= 8


def test_a_trial_that_showed_nothing_goes_on() -> None:
    made = arbiter_of(LINE)
    for _ in range(50):
        made.learn(0, "model", 0, 1)
    while asked(made)[2]:  # what trials may take is spent
        made.learn(0, "model", 0, 1)
    while not asked(made)[2]:
        pass
    made.learn(0, "model", 0, 0)
    assert asked(made) == (0, 1, True)
    made.learn(0, "model", 0, 1)
    assert asked(made) == (0, 0, False)


def test_a_draft_that_may_stop_goes_on_while_its_tokens_pay() -> None:
    made = arbiter_of(LINE, per_token=0.2)
    for _ in range(9):
        made.learn(0, "model", 1, 2)
    assert ask(made, most=16).tokens < 5
    assert made.pays(0, "model", [0.001])
    assert ask(made, most=16, stops=True).tokens == 16
    assert made.pays(0, "model", [0.99] * 15)
    assert not made.pays(0, "model", [0.99, 0.99, 0.2])
    made.price("model", 0.05, 0.6)
    ask(made, most=16, stops=True)
    assert not made.pays(0, "model", [0.5])


def test_a_draft_that_would_not_be_sent_is_not_asked_for() -> None:
    made = arbiter_of(LINE, per_token=0.3)
    for _ in range(9):
        made.learn(0, "model", 1, 2)
    assert 1 <= ask(made).tokens < 4
    assert ask(made, shortest=9).tokens == 0
    for _ in range(99):
        made.learn(0, "model", 4, 4)
    assert ask(made, shortest=4).tokens == 4
    assert ask(made, shortest=5).tokens == 0
    assert ask(made, floats([0.99, 0.99]), shortest=6)[:2] == (2, 4)
    ask(made, stops=True, shortest=3)
    assert made.pays(0, "model", [0.001, 0.001])
    assert not made.pays(0, "model", [0.001, 0.001, 0.001])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.price("m", -1.0, 0.0), "prices must be finite and >= 0"),
        (lambda a: a.price("m", 0.0, float("nan")), "prices must be finite and >= 0"),
        (lambda a: a.begin(-1), r"slot must be in 0\.\.65535"),
        (lambda a: a.expected(1 << 16, "model", 1), r"slot must be in 0\.\.65535"),
        (lambda a: a.expected(0, "other", 1), "'other' has no price yet"),
        (lambda a: a.expected(0, "model", -1), r"tokens must be in 0\.\.1024"),
        (lambda a: a.learn(0, "model", 2, 1), "0 <= num_right <= num_known"),
        (lambda a: a.learn(0, "other", 0, 1), "has no price yet"),
        (
            lambda a: a.ask(0, "model", FreeDraft("f", NONE, np.arange(1)), Terms(4)),
            "at most 0 tokens, as are claimed",
        ),
        (lambda a: ask(a, most=2000), r"most in 0\.\.1024"),
        (lambda a: ask(a, batch_tokens=0), "1 <= decoding <= batch_tokens"),
        (lambda a: ask(a, batch_tokens=1 << 31), "batch_tokens <= 1073741824"),
        (lambda a: ask(a, sharing=0), "sharing >= 1"),
        (lambda a: ask(a, backlog=-1.0), "backlog >= 0"),
        (lambda a: ask(a, left=0), "left >= 1"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(arbiter_of(LINE))
