"""N-grams behind a draft model's draft: the model knows what comes, they how it goes on."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from helpers.fake_target import FakeTarget, choice
from ngramspec.costs import PROFILES
from ngramspec.engine import AutoPolicy, DraftModel, Engine
from ngramspec.engine.speculator import Speculator

from .test_mixed_drafts import check, requests_of

Timed = Callable[..., FakeTarget]


class Phrases(FakeTarget):
    """Texts of phrases that have no token in common: n-grams know how one goes on, no more."""

    def next_token(self, tokens: list[int]) -> int:
        phrase, offset = divmod(len(tokens), 6)
        one = choice(phrase * 1000 + tokens[0], 16)
        return 1 + (offset + 6 * one) % (self.vocab_size - 1)


class Beginner(Phrases):
    """A draft model that says what the target says, mostly."""

    def next_token(self, tokens: list[int]) -> int:
        token = super().next_token(tokens)
        right = random.Random(hash((len(tokens), tokens[-1]))).random() < self.share
        return token if right else 1 + token % (self.vocab_size - 1)

    share = 0.9


def engine_of(
    timed: Timed,
    drafter: str,
    slots: int,
    max_batch: int = 64,
    asked: tuple[int, int] = (4, 600),
) -> Engine:
    """A model of two tokens knows which phrase comes, n-grams the rest of it."""
    options = {"context_size": 1024, "sequences": slots, "max_batch": max_batch * slots}
    target, model = timed("h100-8b", Phrases, **options), Beginner(**options)
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    drafts = DraftModel(model, n_max=2, p_min=0.0)
    engine = Engine(target, drafter, slots=slots, draft_model=drafts, policy=policy, tree="off")
    check(engine, target, requests_of(*asked))
    return engine


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("drafter", ["ngram-cache", "ngram-map-k,ngram-cache"])
def test_tails_take_fewer_passes_and_count_for_their_drafter(
    timed: Timed, monkeypatch: pytest.MonkeyPatch, slots: int, drafter: str
) -> None:
    with_tails = engine_of(timed, drafter, slots)
    monkeypatch.setattr(Speculator, "_add_tail", lambda *_: None)
    without = engine_of(timed, drafter, slots)
    assert with_tails.stats().num_steps < 0.95 * without.stats().num_steps
    ours, others = with_tails.source_stats(), without.source_stats()
    accepted = {True: 0, False: 0}
    for name in drafter.split(","):
        accepted[True] += ours[name].num_accepted_tokens
        accepted[False] += others[name].num_accepted_tokens
    assert accepted[True] > accepted[False]
    assert ours["draft-simple"].propose_calls < others["draft-simple"].propose_calls


def test_wrong_tails_do_not_count_against_the_model(timed: Timed) -> None:
    """The model is right; what n-grams go on with is wrong wherever a phrase ends."""
    target, model = (timed("h100-8b", Phrases, context_size=1024, sequences=1) for _ in range(2))
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    drafts = DraftModel(model, n_max=5, p_min=0.0)
    engine = Engine(target, "ngram-cache", draft_model=drafts, policy=policy, tree="off")
    check(engine, target, requests_of(4, 400))
    assert engine._stepper.speculator.arbiter.expected(0, "draft-simple", 5).min() > 0.9


def test_a_tail_that_is_cut_or_never_reached_leaves_counts_right(timed: Timed) -> None:
    """Batches with little room, so that drafts are cut to it."""
    engine_of(timed, "ngram-cache", 3, max_batch=4, asked=(6, 300))
