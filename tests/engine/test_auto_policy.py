"""An engine with AutoPolicy drafts where text repeats, is silent where not, and shares the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.costs import PROFILES
from ngramspec.engine import AutoPolicy, Engine, Generation, Request, Sampling
from ngramspec.errors import InputError

Timed = Callable[..., FakeTarget]
LENGTH = 150


def run(
    timed: Timed, period: int, slots: int, profile: str, max_batch: int = 64
) -> tuple[Engine, FakeTarget]:
    """Let as many requests as slots run side by side on a target with the costs of a profile."""
    target = timed(profile, sequences=slots, period=period, max_batch=max_batch)
    engine = Engine(target, "suffix", slots=slots, policy=AutoPolicy(costs=PROFILES[profile]))
    requests = [
        Request(
            prompt_ids=int32([slot + 3, 5, 7]),
            sampling=Sampling(temperature=0.0),
            max_tokens=LENGTH,
        )
        for slot in range(slots)
    ]
    answers: list[Generation] = engine.generate(requests)
    for one in answers:
        prompt = one.request.prompt_ids
        plain = Engine(FakeTarget(sequences=1, period=period), None, slots=1)
        expected = plain.generate([Request(prompt_ids=prompt, max_tokens=LENGTH)])
        assert one.token_ids == expected[0].token_ids
    return engine, target


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("slots", [1, 4])
def test_repeating_text_takes_far_fewer_passes(timed: Timed, slots: int, profile: str) -> None:
    engine, target = run(timed, 11, slots, profile)
    stats = engine.stats()
    assert len(target.batches) < 0.75 * LENGTH
    assert stats.num_accepted_tokens > 0.7 * stats.num_draft_tokens


@pytest.mark.parametrize("slots", [1, 4])
def test_text_that_never_repeats_is_left_alone_where_drafts_cost(timed: Timed, slots: int) -> None:
    engine, _ = run(timed, 0, slots, "cpu")
    stats = engine.stats()
    assert stats.num_draft_tokens < 0.08 * stats.num_emitted_tokens


def test_what_drafts_take_in_a_decode_is_no_part_of_the_pass_but_of_the_time(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, policy = timed(period=0), AutoPolicy(costs=PROFILES["moe"])
    decode, plain = target.decode, PROFILES["moe"].cost(1)

    def decode_slowly(batch: Any, rows: Any) -> None:
        decode(batch, rows)
        target.aside = 0.5 * plain
        target.now += target.aside

    monkeypatch.setattr(target, "decode", decode_slowly)
    Engine(target, None, policy=policy).generate([Request(prompt_ids=int32([3]), max_tokens=120)])
    assert policy.cost(1) == pytest.approx(plain)
    assert policy.rate == pytest.approx(1 / (1.5 * plain), rel=0.05)


def test_drafts_of_all_slots_fit_the_batch(timed: Timed) -> None:
    _, target = run(timed, 3, 8, "h100-8b", max_batch=20)
    assert max(target.batches) <= 20
    assert np.mean(target.batches) > 8


@pytest.mark.parametrize("length", range(LENGTH, LENGTH + 500, 63))
def test_drafts_go_on_while_a_long_prompt_is_read(timed: Timed, length: int) -> None:
    """A prompt that fills every pass makes room for what pays, whatever is to be tried out next."""
    target = timed("h100-8b", sequences=2, max_batch=64, context_size=4000)
    engine = Engine(target, "suffix", slots=2, policy=AutoPolicy(costs=PROFILES["h100-8b"]))
    first = engine.submit(Request(prompt_ids=int32([3, 5, 7]), max_tokens=1000))
    while len(first.token_ids) < length:
        engine.step()
    second = engine.submit(Request(prompt_ids=int32([9] * 1000), max_tokens=1))
    before, steps = len(first.token_ids), 0
    while not second.finish_reason:
        engine.step()
        steps += 1
    assert len(first.token_ids) - before > 4 * steps
    assert steps < 1.4 * 1000 / 64


def test_fixed_and_no_drafts_are_obeyed(timed: Timed) -> None:
    for policy, most in ((AutoPolicy(fixed=3), 3), (AutoPolicy(0), 0)):
        target = timed(sequences=1, period=5)
        engine = Engine(target, "suffix", slots=1, policy=policy)
        engine.generate([Request(prompt_ids=int32([4, 5]), max_tokens=100)])
        drafted = engine.stats().draft_lengths
        assert drafted.total <= most * max(1, drafted.count)
        assert (drafted.count > 0) == (most > 0)


@pytest.mark.parametrize("name", ["auto", "gate", "fixed"])
def test_an_engine_takes_a_policy_by_its_name(name: str) -> None:
    engine = Engine(FakeTarget(sequences=1, period=8), "suffix", slots=1, policy=name)
    engine.submit(Request(prompt_ids=int32(range(20)), max_tokens=8))
    while engine.busy:
        engine.step()
    assert engine.drafting().policy == name


def test_a_name_that_is_no_policy_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="one of auto, gate, fixed, shadow, got 'autoo'"):
        Engine(FakeTarget(sequences=1, period=8), "suffix", slots=1, policy="autoo")
