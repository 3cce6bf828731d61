"""What the engine shows a drafter of the logits: rows of the text, then of wrong tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec import SuccessorPool
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, Request, Sampling

FLAT = CostTable(((1, 1.0), (64, 1.05)))
MOST_ROWS = 16  # of a slot and pass


class Chains(FakeTarget):
    """A target whose next token follows from the last one: t, t + 1, ... 40, 1, ..."""

    def next_token(self, tokens: list[int]) -> int:
        return 1 + tokens[-1] % 40


class Odd(FakeTarget):
    """A target whose logits are ties, infinite or no numbers, by position."""

    def is_end(self, token_id: int) -> bool:
        return False

    def row_at(self, place: int) -> np.ndarray:
        row = np.random.default_rng(place).normal(size=self.vocab_size).astype(np.float32).round()
        if place % 6 == 0:
            row[:] = [np.nan, -np.inf, 1.5][place // 6 % 3]
        elif place % 6 < 4:
            row[(place * 7) % 11 :: 13] = [np.inf, 1e30, np.nan][place % 3]
            row[(place * 5) % 17 :: 19] = [1e30, np.inf, -np.inf][place % 3]
        return row

    def decode(self, batch: Batch, rows: Rows) -> None:
        super().decode(batch, rows)
        _, places, _, outputs = batch.arrays()
        logits = [self.row_at(place) for place in places[outputs].tolist()]
        if logits:
            rows.set(np.stack(logits))


class Noting(FakeTarget):
    """Notes which two tokens every row of logits follows, pass by pass."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.contexts: list[list[tuple[int, int, int]]] = []

    def decode(self, batch: Batch, rows: Rows) -> None:
        before = list(self.held[0])
        tokens, places, _, outputs = (part.tolist() for part in batch.arrays())
        branches = batch.branches_of().tolist()
        super().decode(batch, rows)
        seen = []
        for i in range(len(tokens)):
            if outputs[i]:
                path = [
                    tokens[k]
                    for k in range(i + 1)
                    if branches[k] & branches[i] == branches[i] and places[k] <= places[i]
                ]
                text = [*before, *path]
                seen.append((text[-2] if len(text) > 1 else -1, text[-1], self.next_token(text)))
        self.contexts.append(seen)


def request(length: int, prompt: list[int]) -> Request:
    greedy = Sampling(temperature=0.0)
    return Request(prompt_ids=int32(prompt), sampling=greedy, max_tokens=length)


@pytest.mark.parametrize("tree", ["off", "auto"])
def test_what_another_text_was_told_is_drafted_at_once(still: None, tree: str) -> None:
    """No text repeats itself, but the second one goes the way of the first."""
    target = Chains(sequences=1)
    engine = Engine(target, "recycle", policy=AutoPolicy(costs=FLAT), tree=tree)
    passes = []
    for _ in range(2):
        before = len(target.batches)
        answer = engine.generate([request(30, [3])])[0]
        assert list(answer.token_ids) == target.expected([3], 30)
        passes.append(len(target.batches) - before)
    assert passes[0] == 30
    assert passes[1] < 12


@pytest.mark.parametrize("tree", ["off", "auto"])
def test_a_drafter_is_shown_the_rows_of_right_and_wrong_tokens(still: None, tree: str) -> None:
    target, pool = Noting(sequences=1, forks=4), SuccessorPool(1 << 12, 8)
    params = {"recycle": {"pool": pool}}
    policy = AutoPolicy(costs=FLAT)
    engine = Engine(target, "suffix,recycle", policy=policy, params=params, tree=tree)
    engine.generate([request(200, [3, 5, 7])])
    rows = sum(min(len(context), MOST_ROWS) for context in target.contexts)
    assert pool.num_observed == 2 * rows  # each after one token and after two
    followers: dict[tuple[int, int], set[int]] = {}
    for before, last, token in (row for context in target.contexts for row in context):
        followers.setdefault((before, last), set()).add(token)
    shown = {row for context in target.contexts if len(context) <= MOST_ROWS for row in context}
    sure = [row for row in shown if len(followers[row[:2]]) == 1]
    assert len(sure) > 2
    for before, last, token in sure:
        assert pool.successors([before, last])[0][0] == token


def test_the_first_rows_shown_are_those_of_the_text(still: None) -> None:
    """Of a draft that is longer than what is shown, all right tokens are."""
    target, pool = Noting(sequences=1, period=40), SuccessorPool(1 << 12, 8)
    params = {"recycle": {"pool": pool}}
    policy = AutoPolicy(fixed=40)
    engine = Engine(target, "suffix,recycle", policy=policy, params=params, tree="off")
    answer = engine.generate([request(150, [3])])[0]
    assert max(map(len, target.contexts)) > MOST_ROWS
    text = [3, *answer.token_ids]
    assert all(len(pool.successors(text[i - 2 : i])[0]) for i in range(2, 40))


def test_what_is_learnt_at_the_same_reading_changes_no_choice(still: None) -> None:
    target = Odd(sequences=1)
    engine = Engine(target, "recycle", policy=AutoPolicy(costs=FLAT), tree="off")
    rows = Rows(target.vocab_size)
    rows.set(np.stack([target.row_at(place) for place in range(60)]))
    answer = engine.generate([request(50, [3, 5])])[0]
    assert list(answer.token_ids) == [rows.argmax(1 + i) for i in range(50)]


@pytest.mark.parametrize("policy", ["auto", "fixed"])
def test_rows_are_shown_beside_other_sources(still: None, policy: str) -> None:
    """A slot with a prediction asks several sources; what they drafted makes no difference."""
    target, pool = Noting(sequences=1, forks=4), SuccessorPool(1 << 12, 8)
    chosen = AutoPolicy(costs=FLAT) if policy == "auto" else AutoPolicy(fixed=20)
    engine = Engine(target, "recycle", policy=chosen, params={"recycle": {"pool": pool}})
    text = target.expected([3, 5, 7], 60)
    text[::9] = [1] * len(text[::9])
    for _ in range(2):
        asked = request(60, [3, 5, 7])
        engine.generate([replace(asked, prediction_ids=int32(text))])
    stats = engine.source_stats()
    assert stats["prediction"].num_draft_tokens > stats["prediction"].num_accepted_tokens > 0
    assert pool.num_observed == 2 * sum(min(len(context), MOST_ROWS) for context in target.contexts)
    assert stats["recycle"].num_accepted_tokens > 0
    for before, last, token in target.contexts[0]:
        assert token in pool.successors([before, last])[0]
