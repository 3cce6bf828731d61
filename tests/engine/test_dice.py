"""Synthetic acceptance: dice say which drafted tokens are right, and everything else is as ever."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec._native.engine.verifier import Dice
from ngramspec.costs import PROFILES
from ngramspec.engine import AutoPolicy, DraftModel, Engine, Generation, Request, Sampling
from ngramspec.errors import InputError
from ngramspec.lab.e2e.bench import SyntheticSource, rates_of

ORDINARY = np.arange(1, 60, dtype=np.int32)


def run(
    rates: tuple[float, ...],
    longest: int,
    *,
    policy: str | AutoPolicy = "fixed",
    seed: int = 1,
    target: FakeTarget | None = None,
    num_tokens: int = 6000,
) -> tuple[Engine, Generation]:
    target = target or FakeTarget(sequences=1, context_size=8192)
    source = SyntheticSource(rates, ORDINARY, longest)
    engine = Engine(target, source, policy=policy, dice=Dice(rates, seed))
    greedy = Sampling(temperature=0.0)
    request = Request(prompt_ids=int32([3, 5, 7]), sampling=greedy, max_tokens=num_tokens)
    (generation,) = engine.generate([request])
    assert generation.error is None
    return engine, generation


@pytest.mark.parametrize("rates", [(0.8, 0.6, 0.4), (1.0, 1.0), (0.5,), (0.9, 0.0)])
def test_drafts_are_right_as_often_as_asked(rates: tuple[float, ...]) -> None:
    """Also those that go on beyond the rates, where nothing is right."""
    engine, generation = run(rates, 4)
    stats = engine.stats()
    assert stats.num_draft_tokens > 3.99 * stats.num_drafts
    expected = sum(rates)
    spread = (len(rates) / stats.num_drafts) ** 0.5
    assert abs(stats.num_accepted_tokens / stats.num_drafts - expected) < 4 * spread
    lengths = np.diff(np.flatnonzero([not right for right in generation.accepted]))
    for place, rate in enumerate(rates):
        assert abs((lengths > place + 1).mean() - rate) < 0.06


def test_the_same_seed_gives_the_same_text() -> None:
    rates = (0.8, 0.6, 0.4)
    texts = [run(rates, 3, seed=seed, num_tokens=1000)[1].token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_policy_drafts_longer_where_drafts_are_right_more_often(
    timed: Callable[..., FakeTarget],
) -> None:
    drafted = []
    for length in (1.05, 2.0, 6.0):
        target = timed("moe", sequences=1, context_size=8192)
        policy = AutoPolicy(costs=PROFILES["moe"])
        engine, _ = run(rates_of(length, 16), 16, policy=policy, target=target)
        drafted.append(engine.stats().num_draft_tokens / engine.stats().num_steps)
    assert drafted[0] < drafted[1] < drafted[2]


@pytest.mark.parametrize("profile", ["cpu", "h100-8b"])
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_the_policy_learns_what_dice_say_of_drafts_that_were_sent(
    timed: Callable[..., FakeTarget], profile: str, p: float
) -> None:
    """Of others it would learn that a model which says something else does not have them."""
    policy, claims = AutoPolicy(costs=PROFILES[profile]), np.full(3, p, np.float32)
    target = timed(profile, sequences=1, context_size=8192)
    run(tuple(p**i for i in range(1, 17)), 16, policy=policy, target=target)
    assert policy.calibrated("synthetic", claims) == pytest.approx(claims, abs=0.15)


def test_the_policy_learns_what_dice_say_of_native_drafts(
    timed: Callable[..., FakeTarget],
) -> None:
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    target = timed("h100-8b", sequences=1, context_size=8192, period=7)
    rates = tuple(0.8**i for i in range(1, 17))
    params = {"ngram-simple": {"size_n": 1, "size_m": 16}}
    engine = Engine(target, "ngram-simple", params=params, policy=policy, dice=Dice(rates))
    engine.generate([Request(prompt_ids=int32([3, 5, 7]), max_tokens=3000)])
    claims = np.full(3, 0.8, np.float32)
    assert engine.stats().num_drafts > 300
    assert policy.calibrated("ngram-simple", claims) == pytest.approx(claims, abs=0.15)


def test_dice_decide_about_a_draft_models_drafts_and_trees_are_off() -> None:
    target = FakeTarget(sequences=1, context_size=8192)
    engine = Engine(
        target,
        "suffix",
        draft_model=DraftModel(FakeTarget(sequences=1, context_size=8192), n_max=3),
        policy=AutoPolicy(costs=PROFILES["h100-8b"]),
        tree=4,
        dice=Dice((0.5, 0.25)),
    )
    greedy = Sampling(temperature=0.0)
    asked = Request(prompt_ids=int32([3, 5, 7]), sampling=greedy, max_tokens=3000)
    (generation,) = engine.generate([asked])
    stats = engine.stats()
    assert generation.error is None
    assert engine.source_failures() == {}
    assert 0.3 < stats.num_accepted_tokens / stats.num_drafts < 0.9  # a perfect model's
    assert target.adopted == 0


@pytest.mark.parametrize("token", [1, 2, 96])
def test_what_comes_in_place_of_a_wrong_token_ends_no_answer(token: int) -> None:
    class Constant(FakeTarget):
        def next_token(self, tokens: list[int]) -> int:
            return token

        def is_end(self, token: int) -> bool:
            return token in (0, 3, 95)

    source = SyntheticSource((0.0,), int32([token]), 1)
    target = Constant(sequences=1, context_size=8192)
    engine = Engine(target, source, policy="fixed", dice=Dice((0.0,)))
    (generation,) = engine.generate([Request(prompt_ids=int32([5]), max_tokens=50)])
    assert (generation.finish_reason, generation.num_tokens) == ("length", 50)
    assert engine.stats().num_accepted_tokens == 0 < engine.stats().num_drafts


def test_requests_cannot_ask_for_dice() -> None:
    fields = {*Request.__dataclass_fields__, *Sampling.__dataclass_fields__}
    assert not any("dice" in name or "synth" in name for name in fields)


@pytest.mark.parametrize("rates", [(), (1.1,), (0.5, 0.6), (-0.1,), (float("nan"),), (0.5,) * 1025])
def test_rates_out_of_bounds_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        Dice(rates)


@pytest.mark.parametrize(("length", "longest"), [(1.0, 4), (2.5, 8), (5.0, 4), (2.5, 64)])
def test_rates_of_a_length_bring_it(length: float, longest: int) -> None:
    rates = rates_of(length, longest)
    assert len(rates) == longest
    assert 1 + sum(rates) == pytest.approx(length)
    assert list(rates) == sorted(rates, reverse=True)


@pytest.mark.parametrize("length", [0.9, 5.1])
def test_a_length_that_cannot_be_is_refused(length: float) -> None:
    with pytest.raises(InputError):
        rates_of(length, 4)
