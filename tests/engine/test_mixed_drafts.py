"""Drafts with tokens of two sources: a draft model's beside or after those of native drafters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.costs import PROFILES, CostTable
from ngramspec.engine import AutoPolicy, DraftModel, DraftSource, Engine, Request, Sampling
from ngramspec.errors import InputError

Timed = Callable[..., FakeTarget]
FLAT = CostTable(((1, 1.0), (64, 1.05)))
GREEDY = Sampling(temperature=0.0)


class Learner(FakeTarget):
    """A draft model that says what another one says, with a chance; else something else."""

    def __init__(self, right: float, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.right, self.seed = right, seed

    def next_token(self, tokens: list[int]) -> int:
        token = super().next_token(tokens)
        chance = random.Random(hash((self.seed, len(tokens), tokens[0], tokens[-1])))
        return token if chance.random() < self.right else 1 + token % (self.vocab_size - 1)


class Own(DraftSource):
    """A drafter of the user's that knows what a target says."""

    def __init__(self, target: FakeTarget, claim: float) -> None:
        self.target, self.tokens = target, dict[int, list[int]]()
        self.calls = 0
        self.confidence = lambda slot: np.full(4, claim, np.float32)  # type: ignore[method-assign]

    def begin(self, slot: int, token_ids: Any) -> None:
        self.tokens[slot] = token_ids.tolist()

    def draft(self, slot: int, limit: int) -> np.ndarray:
        self.calls += 1
        return int32(self.target.expected(self.tokens[slot], min(limit, 4)))

    def accept(self, slot: int, token_ids: Any, num_accepted: int) -> None:
        self.tokens[slot] += token_ids.tolist()

    def end(self, slot: int) -> None:
        del self.tokens[slot]


def requests_of(count: int, length: int) -> list[Request]:
    return [
        Request(prompt_ids=int32([3 + i, 5, 7]), sampling=GREEDY, max_tokens=length)
        for i in range(count)
    ]


def check(engine: Engine, target: FakeTarget, asked: list[Request], counted: bool = True) -> None:
    """Every text is that of plain decoding; every right one counts for one source, if all count."""
    for answer in engine.generate(asked):
        assert answer.error is None
        request = answer.request
        expected = target.expected(request.prompt_ids.tolist(), request.max_tokens or 0)
        assert list(answer.token_ids) == expected
    sources, total = engine.source_stats().values(), engine.stats()
    assert engine.source_failures() == {}
    if not counted:
        return
    assert sum(one.num_accepted_tokens for one in sources) == total.num_accepted_tokens
    assert sum(one.num_draft_tokens for one in sources) >= total.num_draft_tokens
    assert all(one.num_accepted_tokens <= one.num_draft_tokens for one in sources)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_tree_and_a_model_together_take_fewer_passes(timed: Timed, slots: int) -> None:
    passes: dict[str, int] = {}
    asked = requests_of(6, 600)
    for name, tree in (("tree", 4), ("model", 1), ("chain and model", 1), ("both", 4)):
        options = {"forks": 8, "context_size": 1024, "sequences": slots, "max_batch": 64 * slots}
        target, model = timed("h100-8b", **options), Learner(0.8, **options)
        engine = Engine(
            target,
            None if name == "model" else "suffix",
            slots=slots,
            draft_model=None if name == "tree" else DraftModel(model, n_max=6, p_min=0.0),
            policy=AutoPolicy(costs=PROFILES["h100-8b"]),
            tree=tree,
        )
        check(engine, target, asked)
        passes[name] = len(target.batches)
    assert passes["both"] < min(passes["tree"], passes["chain and model"])
    assert passes["chain and model"] < passes["model"]


def test_claims_of_a_native_drafter_are_corrected_before_a_model_is_asked(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ngram-map-k claims less than is true of its drafts here, which leaves a model less to add."""
    costs = CostTable(((1, 0.010), (64, 0.0115)))
    options = {"forks": 8, "context_size": 2048, "sequences": 1}
    target, model = timed(**options), Learner(0.9, **options)
    target.costs = costs
    decode = model.decode

    def decode_slowly(batch: Any, rows: Any) -> None:
        decode(batch, rows)
        target.now += 0.1 * costs.cost(1)

    monkeypatch.setattr(model, "decode", decode_slowly)
    monkeypatch.setattr("ngramspec.engine.speculator.perf_counter", lambda: target.now)
    nanoseconds = "ngramspec.engine.sources.draft_model.perf_counter_ns"
    monkeypatch.setattr(nanoseconds, lambda: int(1e9 * target.now))
    drafts, policy = DraftModel(model, n_max=6, p_min=0.0), AutoPolicy(costs=costs)
    params = {"ngram-map-k": {"size_n": 3, "size_m": 8}}
    engine = Engine(
        target, "ngram-map-k", slots=1, draft_model=drafts, policy=policy, tree="off", params=params
    )
    check(engine, target, requests_of(4, 800))
    assert engine.source_stats()["draft-simple"].propose_calls < 480


@given(st.integers(0, 1 << 32))
def test_any_request_beside_any_other_gets_its_text(seed: int) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {
        "sequences": chance.randint(1, 3),
        "forks": chance.choice([0, 2, 3]),
        "max_batch": chance.choice([4, 16, 64]),
        "context_size": 256,
        "max_branches": chance.randint(2, 5),
        **chance.choice([{}, {"max_rollback": 5}, {"max_rollback": 0, "can_save": True}]),
    }
    refusal = chance.choice([0.0, 0.2])
    target = FakeTarget(**options, refusal=refusal)
    model = Learner(chance.choice([0.0, 0.5, 0.9, 1.0]), **{**options, "max_rollback": None})
    engine = Engine(
        target,
        chance.choice(["suffix", "suffix,recycle", "ngram-map-k,suffix"]),
        slots=options["sequences"],
        draft_model=DraftModel(model, n_max=chance.randint(1, 8), p_min=chance.choice([0.0, 0.7])),
        policy=AutoPolicy(costs=chance.choice([FLAT, *PROFILES.values()])),
        min_draft=chance.choice([0, 0, 3]),
        tree=chance.choice([1, 2, target.max_branches]),
    )
    check(engine, target, requests_of(chance.randint(1, 5), chance.randint(1, 120)))


def test_a_drafter_in_python_gets_a_branch_beside_it(timed: Timed) -> None:
    target = timed("h100-8b", period=0)
    engine = Engine(
        target,
        Own(Learner(0.5, period=0), 0.5),
        draft_model=DraftModel(Learner(0.7, seed=1, period=0), n_max=4, p_min=0.0),
        policy=AutoPolicy(costs=PROFILES["h100-8b"]),
        tree=4,
    )
    check(engine, target, requests_of(2, 120), counted=False)
    assert max(target.batches) > 1 + 4 + 2
    assert target.adopted > 10


def test_three_sources_say_what_plain_decoding_says(timed: Timed) -> None:
    """A prediction that is wrong, a drafter that takes time beside it, then a draft model."""
    target = timed("h100-8b", period=0)
    own = Own(target, 0.9)
    own.own_passes = True
    own.price = lambda: (0.0, 0.001)  # type: ignore[method-assign]
    engine = Engine(
        target,
        own,
        draft_model=DraftModel(FakeTarget(period=0), n_max=4),
        policy=AutoPolicy(costs=PROFILES["h100-8b"]),
        tree=4,
    )
    (asked,) = requests_of(1, 120)
    prediction = Learner(0.8, period=0).expected(asked.prompt_ids.tolist(), 120)
    check(engine, target, [replace(asked, prediction_ids=int32(prediction))], counted=False)
    assert own.calls > 10


def test_a_slot_refuses_a_tree_that_is_none() -> None:
    from ngramspec._native.engine.slot import Slot

    slot = Slot(0, 64, 3)
    slot.send(int32([1, 2, 3]), int32([-1, 0, 0]), 2)
    assert (slot.draft.tolist(), slot.num_own, slot.branched) == ([1, 2, 3], 2, True)
    slot.send(int32([1, 2]), int32([-1, 0]), 0)
    assert (slot.draft.tolist(), slot.branched) == ([1, 2], False)
    for tree in [
        (int32([1]), int32([0]), 0),
        (int32([1] * 4), int32([-1, 0, 1, 2]), 0),
        (int32([1]), int32([-1]), 2),
        (int32([1]), int32([-1, 0]), 1),
    ]:
        with pytest.raises(InputError):
            slot.send(*tree)
    assert slot.draft.tolist() == [1, 2]
