"""Drafts at temperatures above 0 are drawn, with the random numbers that the sampler uses next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from ngramspec import embedded_model
from ngramspec._native.engine.decode import GreedySampler, Rows
from ngramspec._native.hosts.llama import ChainSampler, DraftSampler
from ngramspec.engine.sampling import Sampling
from ngramspec.engine.sources.second_model import DraftChoice
from ngramspec.errors import InputError
from ngramspec.llamacpp.draft_model import DraftModelSettings
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.llm import LLM

DRAWN: dict[str, dict[str, Any]] = {
    "default": {},
    "hot": {"temperature": 1.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "repeat": {"repeat_penalty": 1.3, "temperature": 1.2},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "typical": {"typical_p": 0.6, "temperature": 1.3},
    "bias": {"logit_bias": {300: 5.0, 301: -5.0, 333: float("-inf"), 2: 1.5}},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05, "temperature": 1.2},
    "mirostat": {"mirostat": 2, "mirostat_eta": 0.3},
}
PROMPT = "import os\n\n\ndef main() -> None:\n"


@pytest.fixture(scope="module")
def target(model: LlamaModel) -> LlamaTarget:
    return LlamaTarget(model, context_size=256, threads=1, flash_attn=True)


def rows_of(size: int, vocab_size: int) -> Rows:
    """Return rows that each leave a few tokens likely."""
    logits = np.random.default_rng(3).normal(0.0, 2.0, (size, vocab_size)).astype(np.float32)
    rows = Rows(vocab_size)
    rows.set(logits)
    return rows


def drafted(sampler: Any, rows: Rows, before: list[int], first: int, count: int) -> list[int]:
    sampler.begin_draft(int32(before))
    tokens = []
    for index in range(first, first + count):
        tokens.append(sampler.choose(rows, index))
        sampler.accept(tokens[-1])
    return tokens


@pytest.mark.parametrize("name", DRAWN)
def test_drafts_are_what_the_sampler_chooses_next_and_do_not_change_it(
    target: LlamaTarget, name: str
) -> None:
    rows = rows_of(40, target.vocab_size)
    sampler, twin = (target.sampler(Sampling(**DRAWN[name]), 11) for _ in range(2))
    drafts = sampler.for_drafts(target.vocab_size)
    assert isinstance(drafts, DraftSampler)
    for first in range(36):
        guess = drafted(drafts, rows, [], first, 4)
        token = sampler.choose(rows, first)
        assert token == twin.choose(rows, first) == guess[0]
        sampler.accept(token)
        twin.accept(token)
        drafted(drafts, rows, [], first + 1, 2)


@pytest.mark.parametrize("name", sorted(set(DRAWN) - {"xtc", "mirostat"}))
def test_whole_drafts_are_right_also_after_tokens_of_others(target: LlamaTarget, name: str) -> None:
    rows = rows_of(40, target.vocab_size)
    sampler = target.sampler(Sampling(**DRAWN[name]), 12)
    drafts = sampler.for_drafts(target.vocab_size)
    for first in range(0, 40, 8):
        whole = drafted(drafts, rows, [], first, 8)
        assert drafted(drafts, rows, whole[:3], first + 3, 5) == whole[3:]
        for index, token in enumerate(whole):
            assert sampler.choose(rows, first + index) == token
            sampler.accept(token)


@pytest.mark.parametrize("more", [-40, 40])
def test_only_tokens_that_both_models_have_are_drawn(target: LlamaTarget, more: int) -> None:
    size = target.vocab_size + more
    rows = rows_of(60, size)
    drafts = target.sampler(Sampling(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0), 1).for_drafts(
        size
    )
    tokens = drafted(drafts, rows, [], 0, 60)
    assert all(0 <= token < min(size, target.vocab_size) for token in tokens)
    assert len(set(tokens)) > 30


def test_where_nothing_is_drawn_the_likeliest_tokens_are_drafted(target: LlamaTarget) -> None:
    greedy = Sampling(temperature=0.0, repeat_penalty=1.3)
    assert target.sampler(greedy, 1).for_drafts(target.vocab_size) is None
    assert GreedySampler().for_drafts(5) is None
    sampler = target.sampler(Sampling(), 1)
    assert isinstance(sampler, ChainSampler)
    with pytest.raises(InputError, match=r"vocab_size must be >= 1, got 0"):
        DraftSampler(sampler, 0)
    idle = DraftSampler(sampler, target.vocab_size)
    idle.accept(3)  # no draft has begun: nothing happens
    assert idle.choose(rows_of(1, target.vocab_size), 0) == -1


def test_a_way_that_is_right_less_often_is_left(target: LlamaTarget) -> None:
    rows = rows_of(40, target.vocab_size)
    choice = DraftChoice(target.vocab_size, 1)
    choice.start(0, target.sampler(Sampling(temperature=1.5), 5))

    def step(right: str) -> tuple[bool, float]:
        """Draft until the ways part, and tell which was right; was the drawn token taken?"""
        choice.begin(0, int32([]))
        for index in range(40):
            token, probability = choice.take(0, rows, index)
            parting = choice._partings[0]
            if parting is not None:
                came = {"drawn": parting.drawn, "likeliest": parting.likeliest, "neither": -1}[
                    right
                ]
                emitted = int32([0] * index + [came])
                choice.judge(0, index + (token == came), emitted)
                return token == parting.drawn, probability
        raise AssertionError("the likeliest token was drawn everywhere")

    assert step("drawn") == (True, pytest.approx(0.5))
    sure = [step("drawn")[1] for _ in range(40)]
    assert sure == sorted(sure)
    assert 0.85 < sure[-1] < 1.0
    taken = [step("likeliest")[0] for _ in range(80)]
    assert taken[0]
    assert not taken[-1]
    assert taken == sorted(taken, reverse=True)  # it turns once
    for _ in range(80):
        step("neither")
    assert not step("drawn")[0]
    choice.end(0)  # likeliest tokens, as of a request that is not known
    choice.begin(0, int32([]))
    assert [choice.take(0, rows, index)[0] for index in range(40)] == [
        rows.argmax(index) for index in range(40)
    ]


@pytest.fixture(scope="module")
def texts() -> dict[str, Any]:
    """Answers without drafts, by settings."""
    with LLM(None, None, slots=1, context_size=512, calibrate=0) as llm:
        return {name: answers(llm, options) for name, options in DRAWN.items()}


def answers(llm: LLM, options: dict[str, Any]) -> list[Any]:
    return [
        llm.generate(PROMPT, max_tokens=24, **{"temperature": 0.8, "seed": seed, **options})
        for seed in range(2)
    ]


def test_a_model_that_drafts_for_itself_is_always_right(texts: dict[str, Any]) -> None:
    second = DraftModelSettings(path=embedded_model(), n_max=4, p_min=0.0)
    with LLM(
        None, None, slots=1, context_size=512, policy="fixed", draft_model=second, calibrate=0
    ) as llm:
        for name, options in DRAWN.items():
            for answer, plain in zip(answers(llm, options), texts[name], strict=True):
                assert answer.token_ids == plain.token_ids, name
                timings = answer.timings
                assert timings.num_draft_tokens > 10
                if name not in ("xtc", "mirostat"):
                    assert timings.num_accepted_tokens == timings.num_draft_tokens, name


def test_likeliest_tokens_would_be_wrong_more_often(
    texts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above says would be so without drawing is not."""
    monkeypatch.setattr(DraftChoice, "start", lambda self, slot, sampler: None)
    second = DraftModelSettings(path=embedded_model(), n_max=4, p_min=0.0)
    with LLM(
        None, None, slots=1, context_size=512, policy="fixed", draft_model=second, calibrate=0
    ) as llm:
        for answer, plain in zip(answers(llm, DRAWN["hot"]), texts["hot"], strict=True):
            assert answer.token_ids == plain.token_ids
            assert answer.timings.num_accepted_tokens < answer.timings.num_draft_tokens
