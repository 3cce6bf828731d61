"""Engine, requests and sources count the same drafts, whatever cuts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, DraftModel, Engine, Request, Speculation
from ngramspec.engine.policy import make_policy
from ngramspec.errors import CapacityError

pytestmark = pytest.mark.usefixtures("still")

FLAT = CostTable(((1, 1.0), (64, 1.02)))  # so that long drafts pay
POLICIES: dict[str, Callable[[], Any]] = {
    "auto": lambda: AutoPolicy(16, FLAT),
    "gate": lambda: make_policy("gate", 16),
    "fixed": lambda: AutoPolicy(fixed=16),
}
# What cuts drafts: options of the target, then fields of the requests.
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "small batches": ({"max_batch": 12}, {}),
    "few rows of logits": ({"max_outputs": 9}, {}),
    "min_draft": ({}, {"speculation": Speculation(min_draft=6)}),
    "min_draft in small batches": ({"max_batch": 14}, {"speculation": Speculation(min_draft=4)}),
    "max_draft": ({}, {"speculation": Speculation(max_draft=3)}),
    "stop texts": ({}, {"stop": (" 8 ", " 30 3")}),
    "end tokens": ({"end_every": 23}, {}),
    "saved states": ({"max_rollback": 0, "can_save": True}, {}),
}


class Speller(FakeTarget):
    """A draft model that is wrong now and then."""

    def next_token(self, tokens: list[int]) -> int:
        token = super().next_token(tokens)
        return token if len(tokens) % 7 else token % (self.vocab_size - 1) + 1


def make_engine(
    policy: str, drafter: str | None, model: bool, slots: int = 5, **options: Any
) -> tuple[Engine, FakeTarget]:
    common = {"sequences": slots, "context_size": 300, "split": False}
    target = FakeTarget(**{**common, "max_branches": 4, **options})
    draft_model = None
    if model:
        speller = Speller(**common, period=target.period, end_every=target.end_every)
        draft_model = DraftModel(speller, n_max=5, p_min=0.0)
    engine = Engine(
        target, drafter, slots=slots, policy=POLICIES[policy](), draft_model=draft_model
    )
    return engine, target


def assert_agree(engine: Engine, answers: list[Any]) -> int:
    """Compare all counts; return how many drafted tokens were right."""
    stats, sources = engine.stats(), engine.source_stats().values()
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert getattr(stats, name) == sum(getattr(one.timings, name) for one in answers)
    assert sum(map(sum, (one.accepted for one in answers))) == stats.num_accepted_tokens
    assert sum(one.num_draft_tokens for one in sources) == stats.num_draft_tokens
    assert sum(one.num_accepted_tokens for one in sources) == stats.num_accepted_tokens
    # A draft with tokens of two sources is one of each.
    assert stats.num_drafts <= sum(one.num_drafts for one in sources) <= 2 * stats.num_drafts
    for one in sources:
        assert one.accept_calls == one.num_drafts
        assert one.num_accepted_drafts <= one.num_drafts
        assert sum(one.accepted_per_position) == one.num_accepted_tokens
    predicted = engine.source_stats().get("prediction")
    if predicted is not None:
        right = sum(one.timings.num_prediction_accepted for one in answers)
        wrong = sum(one.timings.num_prediction_rejected for one in answers)
        assert (right, right + wrong) == (
            predicted.num_accepted_tokens,
            predicted.num_draft_tokens,
        )
    return int(stats.num_accepted_tokens)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("policy", POLICIES)
def test_they_agree(policy: str, limit: str) -> None:
    options, fields = LIMITS[limit]
    right = 0
    for drafter, model, predicts in itertools.product(
        ("suffix", "ngram-simple,recycle", None), (False, True), (False, True)
    ):
        if model and "can_save" in options:
            continue
        engine, target = make_engine(policy, drafter, model, **options)
        requests = []
        for number in range(9):
            prompt = [3 + number, 5, 7]
            answer = target.expected(prompt, 60)
            if predicts and number % 2:
                fields = {**fields, "prediction_ids": int32([*answer[:20], 9, *answer[25:]])}
            requests.append(Request(prompt_ids=int32(prompt), max_tokens=70, **fields))
        right += assert_agree(engine, engine.generate(requests))
    assert right > 100


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", [False, True])
def test_drafts_of_a_decode_that_failed_count_nowhere(policy: str, model: bool) -> None:
    engine, target = make_engine(policy, "suffix", model, slots=2)
    answers = [
        engine.submit(Request(prompt_ids=int32([3 + i, 5, 7]), max_tokens=90)) for i in range(3)
    ]
    for step in itertools.count():
        if step % 9 == 8:
            target.fail_next = CapacityError("no room")
        if not engine.step():
            break
    assert assert_agree(engine, answers) > 20
