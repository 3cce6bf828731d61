"""Offers: an AutoPolicy chooses among sources that are not native, and learns from all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.costs import PROFILES
from ngramspec.engine import AutoPolicy, DraftModel, Engine, Generation, Request

Timed = Callable[..., FakeTarget]
LENGTH = 120
PROMPT = int32([3, 5, 7])


class Own:
    """A drafter of the user's: right or wrong, with or without a claim."""

    def __init__(self, target: FakeTarget, right: bool = True, claim: Any = None) -> None:
        self.target, self.right, self.tokens = target, right, dict[int, list[int]]()
        self.shortened: list[int] = []
        if claim is not None:
            self.confidence = lambda slot: claim

    def begin(self, slot: int, token_ids: Any) -> None:
        self.tokens[slot] = token_ids.tolist()

    def propose(self, slot: int, limit: int) -> list[int]:
        draft = self.target.expected(self.tokens[slot], min(limit, 4))
        return draft if self.right else [token % 96 + 1 for token in draft]

    def accept(self, slot: int, token_ids: Any, num_accepted: int) -> None:
        self.tokens[slot] += token_ids.tolist()

    def end(self, slot: int) -> None:
        del self.tokens[slot]

    def shorten(self, slot: int, length: int) -> None:
        self.shortened.append(length)


def run(engine: Engine, slots: int = 1, **request: Any) -> list[Generation]:
    wanted = Request(prompt_ids=PROMPT, max_tokens=LENGTH, **request)
    made = engine.generate([wanted] * slots)
    plain = Engine(FakeTarget(period=0), None, slots=1)
    expected = plain.generate([Request(prompt_ids=PROMPT, max_tokens=LENGTH)])[0].token_ids
    assert all(one.token_ids == expected for one in made)
    return made


def expected_text() -> Any:
    return int32(FakeTarget(period=0).expected(PROMPT.tolist(), LENGTH))


def test_a_right_source_without_claims_is_learnt_to_be_right(timed: Timed) -> None:
    target, policy = timed(period=0), AutoPolicy(costs=PROFILES["moe"])
    own = Own(target)
    engine = Engine(target, own, policy=policy)
    run(engine)
    assert engine.stats().num_accepted_tokens > 0.6 * LENGTH
    assert own.shortened.count(4) > 0.7 * len(own.shortened)  # a pass now and then has no drafts


def test_a_wrong_source_falls_silent_and_a_right_one_goes_on(timed: Timed) -> None:
    target, policy = timed(period=0), AutoPolicy(costs=PROFILES["moe"])
    engine = Engine(target, Own(target, right=False), policy=policy)
    (made,) = run(engine, prediction_ids=expected_text())
    assert made.timings.num_prediction_accepted > 0.6 * LENGTH
    assert engine.stats().num_draft_tokens - engine.stats().num_accepted_tokens < 0.1 * LENGTH


@pytest.mark.parametrize("claim", [None, np.full(4, 0.9, np.float32), [0.9] * 8])
def test_slots_share_the_pass(timed: Timed, claim: Any) -> None:
    target = timed(period=0, max_batch=8)
    engine = Engine(target, Own(target, claim=claim), slots=4, policy=AutoPolicy())
    run(engine, slots=4)
    assert max(target.batches) <= 8
    assert engine.stats().num_accepted_tokens > LENGTH


@pytest.mark.parametrize(
    "claim", [[0.9], [2.0] * 4, [float("nan")] * 4, "none", np.zeros((4, 2), np.float32)]
)
def test_a_source_that_claims_nonsense_is_shut_out(timed: Timed, claim: Any) -> None:
    target = timed(period=0)
    engine = Engine(target, Own(target, claim=claim), policy=AutoPolicy())
    run(engine)
    assert engine.source_failures() == {"own": 1}
    assert engine.stats().num_draft_tokens == 0


def test_a_source_that_cannot_be_shortened_is_shut_out(timed: Timed) -> None:
    target = timed(period=0)
    own = Own(target)
    own.shorten = None  # type: ignore[assignment,method-assign]
    engine = Engine(target, own, policy=AutoPolicy())
    run(engine)
    assert engine.source_failures() == {"own": 1}


def test_a_draft_model_is_asked_where_nothing_else_is_sent(timed: Timed) -> None:
    target, model = timed(period=0), FakeTarget(period=0)
    own = Own(target, right=False)
    engine = Engine(target, own, draft_model=DraftModel(model), policy=AutoPolicy())
    run(engine)
    assert engine.source_stats()["draft-model"].num_accepted_tokens > 0.25 * LENGTH


def test_a_draft_model_that_is_never_right_is_seldom_asked(timed: Timed) -> None:
    target, model = timed(period=0), FakeTarget(period=5)
    engine = Engine(target, None, draft_model=DraftModel(model), policy=AutoPolicy())
    run(engine)
    assert 0 < engine.source_stats()["draft-model"].propose_calls < 0.35 * LENGTH
