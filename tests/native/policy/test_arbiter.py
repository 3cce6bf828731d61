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
        for side in (self.native, self.twin):
            side.price(source, start, token)

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
        answer = self.native.ask(slot, source, draft, terms)
        ways = (chosen, *batch, sharing, extends, backlog, parents, branches, stops, shortest, left)
        expected = self.twin.ask(slot, source, most, room, "free", claims, *ways)
        assert answer == expected
        assert self.native.pays(slot, source, drafted) == self.twin.pays(slot, source, drafted)
        assert answer.after <= chosen
        assert parents is not None or answer.after in (0, chosen)
        assert answer.tokens <= most
        assert answer.after + answer.tokens <= max(room, 0)
        assert not answer.beside or (not answer.after and branches > 1)
        if answer.tokens and not answer.trial:
            assert (chosen if answer.after or answer.beside else 0) + answer.tokens >= shortest

    @rule(
        slot=st.integers(0, 2),
        source=st.sampled_from("ab"),
        right=st.integers(0, 9),
        more=st.integers(0, 3),
        apart=st.booleans(),
    )
    def learn(self, slot: int, source: str, right: int, more: int, apart: bool) -> None:
        for side in (self.native, self.twin):
            side.learn(slot, source, right, right + more, apart)

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
                expected = self.twin.sources[name].expected(slot)
                chances = self.native.expected(slot, name, 9)[[0, 1, 2, 4, 8]]
                assert chances == pytest.approx(expected, abs=1e-6)


TestPair = Pair.TestCase
TestPair.settings = SETTINGS


def ask(arbiter: Arbiter, claims: np.ndarray = NONE, most: int = 4, **terms: Any) -> Asked:
    """Ask beside a free draft, all of which would be sent."""
    draft = FreeDraft("free", claims, np.arange(len(claims), dtype=np.int32))
    return arbiter.ask(0, "model", draft, Terms(64, most, **terms))


def asked(arbiter: Arbiter, claims: np.ndarray = NONE) -> tuple[int, int, bool]:
    return ask(arbiter, claims)[:3]


def arbiter_of(table: CostTable, start: float = 0.05, per_token: float = 0.05) -> Arbiter:
    arbiter = Arbiter(AutoPolicy(64, table))
    arbiter.price("model", start, per_token)
    arbiter.begin(0)
    return arbiter


def test_a_source_that_is_right_is_asked_for_all_it_drafts() -> None:
    arbiter = arbiter_of(LINE)
    for _ in range(9):
        arbiter.learn(0, "model", 4, 4)
    assert asked(arbiter) == (0, 4, False)


def test_it_goes_on_where_a_free_draft_ends() -> None:
    arbiter = arbiter_of(LINE)
    for _ in range(9):
        arbiter.learn(0, "model", 4, 4)
    assert asked(arbiter, floats([0.99, 0.99])) == (2, 4, False)
    assert asked(arbiter, floats([0.1, 0.1]))[0] == 0, "a free draft that is wrong hides it"


def test_a_source_that_is_wrong_rests_but_for_trials() -> None:
    arbiter = arbiter_of(LINE)
    answers = []
    for _ in range(400):
        answers.append(asked(arbiter))
        if answers[-1][1]:
            arbiter.learn(0, "model", 0, answers[-1][1])
    trials = [one for one in answers[20:] if one[1]]
    assert set(trials) == {(0, 1, True)}
    assert 0.006 * 380 < len(trials) * 0.1 <= 0.008 * 380 + 2, "a hundredth of the time at most"


def test_a_dear_source_is_never_tried_while_it_could_not_pay() -> None:
    arbiter = arbiter_of(DEAR, start=3.0)
    assert {asked(arbiter) for _ in range(2000)} == {(0, 0, False)}


def test_a_source_that_gets_better_is_soon_asked_again() -> None:
    arbiter = arbiter_of(LINE)
    for _ in range(50):
        arbiter.learn(0, "model", 0, 1)
    waited = 0
    while asked(arbiter)[1] != 4:
        waited += 1
        assert waited < 60
        arbiter.learn(0, "model", 1, 1)


def test_a_source_that_is_right_in_runs_is_left_and_found_within_a_few_drafts() -> None:
    arbiter = arbiter_of(LINE)
    late: dict[bool, list[int]] = {True: [], False: []}
    for run in range(40):
        right, waited = run % 2 == 0, 0
        for _ in range(60):
            _, tokens, trial = asked(arbiter)
            if tokens:
                arbiter.learn(0, "model", tokens if right else 0, tokens)
            waited += (trial or not tokens) if right else (tokens > 0 and not trial)
        late[right].append(waited)
    assert np.mean(late[False][-10:]) <= 8, "drafts that were paid for after a run"
    assert np.mean(late[True][-10:]) <= 20, "passes before a run was found"


def test_slots_that_share_a_draft_share_its_price() -> None:
    arbiter = arbiter_of(LINE, start=0.8, per_token=0.01)
    for _ in range(9):
        arbiter.learn(0, "model", 3, 4)
    assert ask(arbiter, batch_tokens=8, decoding=8).tokens == 0
    assert ask(arbiter, batch_tokens=8, decoding=8, sharing=8).tokens > 1


def test_drafting_that_made_the_text_slow_does_not_look_cheap_for_that() -> None:
    arbiter = arbiter_of(DEAR, start=0.0, per_token=1.0)  # a token takes what a pass takes
    for _ in range(20):
        arbiter.learn(0, "model", 4, 4)
        arbiter.policy.step(1, 1)
        arbiter.policy.spend(20.0)
    assert asked(arbiter) == (0, 0, False)


def test_reading_the_text_is_paid_by_many_drafts_and_trials() -> None:
    arbiter = arbiter_of(LINE)
    for _ in range(9):
        arbiter.learn(0, "model", 4, 4)
    assert ask(arbiter, backlog=20.0, left=150).tokens == 4
    assert ask(arbiter, backlog=20.0, left=15).tokens == 0
    assert ask(arbiter, backlog=200.0, left=150).tokens == 0
    assert ask(arbiter, backlog=200.0, left=1500).tokens == 4
    for _ in range(50):
        arbiter.learn(0, "model", 0, 1)
    trials = []
    for step in range(400):
        if ask(arbiter, backlog=20.0, left=150).trial:
            arbiter.learn(0, "model", 0, 1)
            trials.append(step)
    assert 2 <= len(trials) <= 8


def test_a_trial_that_showed_nothing_goes_on() -> None:
    arbiter = arbiter_of(LINE)
    for _ in range(50):
        arbiter.learn(0, "model", 0, 1)
    while asked(arbiter)[2]:  # what trials may take is spent
        arbiter.learn(0, "model", 0, 1)
    while not asked(arbiter)[2]:
        pass
    arbiter.learn(0, "model", 0, 0)
    assert asked(arbiter) == (0, 1, True)
    arbiter.learn(0, "model", 0, 1)
    assert asked(arbiter) == (0, 0, False)


def test_a_draft_that_may_stop_goes_on_while_its_tokens_pay() -> None:
    arbiter = arbiter_of(LINE, per_token=0.2)
    for _ in range(9):
        arbiter.learn(0, "model", 1, 2)
    assert ask(arbiter, most=16).tokens < 5
    assert arbiter.pays(0, "model", [0.001])
    assert ask(arbiter, most=16, stops=True).tokens == 16
    assert arbiter.pays(0, "model", [0.99] * 15)
    assert not arbiter.pays(0, "model", [0.99, 0.99, 0.2])
    arbiter.price("model", 0.05, 0.6)
    ask(arbiter, most=16, stops=True)
    assert not arbiter.pays(0, "model", [0.5])


def test_a_draft_that_would_not_be_sent_is_not_asked_for() -> None:
    arbiter = arbiter_of(LINE, per_token=0.3)
    for _ in range(9):
        arbiter.learn(0, "model", 1, 2)
    assert 1 <= ask(arbiter).tokens < 4
    assert ask(arbiter, shortest=9).tokens == 0
    for _ in range(99):
        arbiter.learn(0, "model", 4, 4)
    assert ask(arbiter, shortest=4).tokens == 4
    assert ask(arbiter, shortest=5).tokens == 0
    assert ask(arbiter, floats([0.99, 0.99]), shortest=6)[:2] == (2, 4)
    ask(arbiter, stops=True, shortest=3)
    assert arbiter.pays(0, "model", [0.001, 0.001])
    assert not arbiter.pays(0, "model", [0.001, 0.001, 0.001])


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
        (lambda a: a.time("other", 0.0, 0.0), "'other' has no price"),
        (lambda a: a.time("model", -1.0, 0.0), "prices must be finite"),
        (lambda a: a.time("model", 0.0, float("inf")), "prices must be finite"),
        (lambda a: a.note_call("other", 1), "'other' has no price"),
        (lambda a: a.note_call("model", 0), "sharing must be >= 1"),
        (lambda a: a.owe(0, "other", 0.0), "'other' has no price"),
        (lambda a: a.owe(0, "model", -1.0), "seconds must be finite"),
        (lambda a: a.owe(0, "model", float("nan")), "seconds must be finite"),
        (lambda a: a.owe(0, "model", 0.0, -1), "tokens >= 0"),
        (lambda a: a.owe(1 << 16, "model", 0.0), "slot must be in"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(arbiter_of(LINE))
