"""A draft model ends its drafts where another token is not worth its time.

`pytest -s tests/engine/test_draft_stops.py` prints what that brings: emitted tokens per time with
it, over those with the length that is chosen beforehand, on a source with known probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.costs import PROFILES, CostTable
from ngramspec.engine import AutoPolicy, DraftModel, Engine, Request

LENGTH = 240
LINE = CostTable(((1, 1.0), (2, 1.1)))


class Known(FakeTarget):
    """A draft model that is right with a probability that it states, by position: 0.99 or `unsure`.

    Each of its decodes takes `price` passes of the target over one token, by the target's clock.
    """

    def __init__(self, target: FakeTarget, price: float, unsure: float, **options: Any) -> None:
        super().__init__(period=0, **options)
        self.target, self.price, self.unsure, self.sizes = target, price, unsure, list[int]()

    def surety(self, tokens: list[int]) -> float:
        return 0.99 if random.Random(len(tokens) // 7).random() < 0.6 else self.unsure

    def next_token(self, tokens: list[int]) -> int:
        token = super().next_token(tokens)
        right = random.Random(hash((tokens[0], len(tokens)))).random() < self.surety(tokens)
        return token if right else 1 + token % (self.vocab_size - 1)

    def decode(self, batch: Batch, rows: Rows) -> None:
        super().decode(batch, rows)
        assert self.target.costs is not None
        self.target.now += self.price * self.target.costs.cost(1)
        self.sizes.append(len(batch))
        table = []
        positions, sequences, outputs = (part.tolist() for part in batch.arrays()[1:])
        for row, (position, sequence) in enumerate(
            (p, s) for p, s, out in zip(positions, sequences, outputs, strict=True) if out
        ):
            p = self.surety(self.held[sequence][: position + 1])
            logits = np.full(self.vocab_size, np.log((1 - p) / (self.vocab_size - 1)), np.float32)
            logits[rows.argmax(row)] = np.log(p)
            table.append(logits)
        if table:
            rows.set(np.array(table, np.float32))


class Unbound(DraftModel):
    """A draft model as long as it was asked for."""

    stops = False


Clock = Callable[[FakeTarget], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Make everything that is timed go by a target's clock."""

    def tick(target: FakeTarget) -> None:
        seconds = lambda: target.now  # noqa: E731
        monkeypatch.setattr("ngramspec.engine.stepper.time", SimpleNamespace(perf_counter=seconds))
        monkeypatch.setattr("ngramspec.engine.speculator.perf_counter", seconds)
        monkeypatch.setattr(
            "ngramspec.engine.sources.draft_model.perf_counter_ns", lambda: int(1e9 * target.now)
        )

    return tick


def run(
    clock: Clock, stops: bool, profile: str, price: float, unsure: float, slots: int
) -> tuple[float, Known]:
    """Return the emitted tokens per second, and the draft model."""
    options = {"sequences": slots, "context_size": 512}
    target = FakeTarget(period=0, costs=PROFILES[profile], **options)
    clock(target)
    model = Known(target, price, unsure, **options)
    drafts = (DraftModel if stops else Unbound)(model, n_max=16, p_min=0.0)
    policy = AutoPolicy(costs=PROFILES[profile])
    engine = Engine(target, None, slots=slots, draft_model=drafts, policy=policy)
    asked = [Request(prompt_ids=int32([3 + i, 5]), max_tokens=LENGTH) for i in range(6)]
    for answer in engine.generate(asked):
        assert list(answer.token_ids) == target.expected(answer.request.prompt_ids.tolist(), LENGTH)
    assert engine.source_failures() == {}
    return 6 * LENGTH / target.now, model


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("profile", ["h100-8b", "moe"])
def test_more_tokens_come_in_the_same_time(clock: Clock, profile: str, slots: int) -> None:
    product = 1.0
    for price, unsure in ((0.1, 0.3), (0.2, 0.5)):
        speeds = {
            stops: run(clock, stops, profile, price, unsure, slots)[0] for stops in (False, True)
        }
        ratio = speeds[True] / speeds[False]
        print(f"{profile}, {slots} slots, a token {price} passes, {unsure}: {ratio:.3f}")
        assert ratio > 0.96
        product *= ratio
    assert product > 1.05
