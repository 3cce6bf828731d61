"""Probabilities after the sampler: what each token was chosen from, with drafts as without."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.workload import Oracle, requests
from helpers.backends import int32
from helpers.exact_settings import find_once
from helpers.fake_target import FakeTarget
from ngramspec import LLM
from ngramspec._native.engine.decode import GreedySampler, Rows, Sampler
from ngramspec._native.engine.slot import Slot
from ngramspec.engine import (
    AutoPolicy,
    Engine,
    Generation,
    ReasoningBudget,
    Request,
    Sampling,
    Speculation,
    TokenLogprob,
)
from ngramspec.errors import InputError
from ngramspec.llamacpp.exact import open_exact
from ngramspec.llamacpp.model import LlamaModel

CONTEXT = 512


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Without drafts: passes of other sizes round otherwise, and two answers are compared here."""
    with LLM(drafter=None, slots=1, context_size=CONTEXT, threads=1) as plain:
        yield plain


def probabilities(entry: TokenLogprob) -> list[float]:
    return [math.exp(value) for _, value in entry.top]


def test_drafts_change_no_probability(model: LlamaModel) -> None:
    """In the exact setting, for all kinds of sampling, with right and wrong drafts."""
    exactness = find_once(model, 1, 3)
    plain = {answer.request.id: answer for answer in answers_of(model, exactness, None)}
    oracle = Oracle({one.request.prompt_ids.tobytes(): one.token_ids for one in plain.values()})
    for drafter in ("ngram-simple,ngram-mod", oracle):
        drafted = answers_of(model, exactness, drafter)
        assert sum(answer.timings.num_accepted_tokens for answer in drafted) > 100
        assert sum(answer.timings.num_draft_tokens for answer in drafted) > sum(
            answer.timings.num_accepted_tokens for answer in drafted
        )
        for answer in drafted:
            assert answer.logprobs == plain[answer.request.id].logprobs
            assert [one.token_id for one in answer.logprobs] == answer.token_ids


def answers_of(model: LlamaModel, exactness: Any, drafter: Any) -> list[Generation]:
    speculation = Speculation(enabled=drafter is not None)
    asked = [
        dataclasses.replace(request, logprobs=5, post_sampling_probs=True, max_tokens=60)
        for request in requests(model, range(12), speculation)
    ]
    slots = 3 if drafter else 1
    params = {"ngram-simple": {"size_n": 3, "size_m": 20}, "ngram-mod": {"n_match": 4, "n_min": 1}}
    with open_exact(model, exactness, slots, CONTEXT) as target:
        named = params if isinstance(drafter, str) else None
        policy = AutoPolicy(fixed=12) if drafter else None
        engine = Engine(target, drafter, slots=slots, params=named, policy=policy, exact=True)
        return engine.generate(asked)


def test_probabilities_are_a_share_of_what_the_filters_leave(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 20, "seed": 4, "temperature": 1.2, "top_k": 6}
    options |= {"top_p": 1.0, "min_p": 0.0, "logprobs": 10}
    after = llm.generate("def area(", post_sampling_probs=True, **options)
    before = llm.generate("def area(", **options)
    assert after.token_ids == before.token_ids
    for sampled, target in zip(after.logprobs, before.logprobs, strict=True):
        likeliest = [token for token, _ in target.top[:6]]
        assert {token for token, _ in sampled.top} == set(likeliest)
        weights = np.exp([value / 1.2 for _, value in target.top[:6]])
        assert probabilities(sampled) == pytest.approx(weights / weights.sum(), rel=1e-4)
        assert math.exp(sampled.logprob) in probabilities(sampled)


def test_a_greedy_token_is_certain(llm: LLM) -> None:
    for options in ({}, {"repeat_penalty": 1.3}, {"grammar": "root ::= [a-z]+"}):
        asked: dict[str, Any] = {"temperature": 0, "logprobs": 3, "max_tokens": 8, **options}
        answer = llm.generate("def area(", post_sampling_probs=True, **asked)
        assert answer.num_tokens > 0
        for one in answer.logprobs:
            assert one == TokenLogprob(one.token_id, 0.0, ((one.token_id, 0.0),))


def test_a_grammars_tokens_are_the_only_ones(llm: LLM) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 1, "logprobs": 1000, "max_tokens": 30}
    options |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "post_sampling_probs": True}
    answer = llm.generate("def area(", grammar="root ::= [0-9]{24}", **options)
    forced = 0
    for one in answer.logprobs:
        texts = [llm.model.detokenize(int32([token])) for token, _ in one.top]
        if not all(text.isdigit() for text in texts):
            continue  # the free choice was a digit, so all were possible
        forced += 1
        assert sum(probabilities(one)) == pytest.approx(1.0, abs=1e-5)
    assert forced > 2


def test_no_end_token_is_probable_where_it_is_ignored(llm: LLM) -> None:
    options: dict[str, Any] = {"temperature": 2.0, "seed": 2, "logprobs": 1000, "max_tokens": 10}
    options |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "post_sampling_probs": True}
    ends = set(llm.model.vocabulary.end_tokens)
    shown = [
        {token for one in llm.generate("x", ignore_eos=ignore, **options).logprobs
         for token, _ in one.top}
        for ignore in (False, True)
    ]  # fmt: skip
    assert shown[0] & ends
    assert not shown[1] & ends


def test_forced_tokens_are_certain(llm: LLM) -> None:
    budget = ReasoningBudget(
        tokens=5, open="<think>", closes=("</think>",), end_ids=int32([60, 61, 62]), begun=True
    )
    answer = llm.generate(
        "def f(x):\n", max_tokens=12, sampling=Sampling(temperature=1.0, seed=3),
        reasoning_budget=budget, logprobs=4, post_sampling_probs=True,
    )  # fmt: skip
    assert answer.token_ids[5:8] == [60, 61, 62]
    for one in answer.logprobs[5:8]:
        assert one == TokenLogprob(one.token_id, 0.0, ((one.token_id, 0.0),))
    assert any(len(one.top) > 1 for one in answer.logprobs)


def test_they_come_with_the_chunks_of_their_tokens() -> None:
    target = FakeTarget()
    engine, chunks = Engine(target, "suffix", slots=1), []
    request = Request(prompt_ids=int32([3, 4]), max_tokens=40, logprobs=1, post_sampling_probs=True)
    answer = engine.submit(request, chunks.append)
    while engine.step():
        pass
    assert any(len(chunk.token_ids) > 1 for chunk in chunks)  # drafts were right
    for chunk in chunks:
        assert tuple(one.token_id for one in chunk.logprobs) == chunk.token_ids
    assert [one for chunk in chunks for one in chunk.logprobs] == answer.logprobs
    assert answer.num_tokens == 40


def test_without_a_number_nothing_is_told(llm: LLM) -> None:
    answer = llm.generate("x", max_tokens=3, temperature=0.8, post_sampling_probs=True)
    assert answer.logprobs == []
    none = llm.generate("x", max_tokens=3, temperature=0, logprobs=0, post_sampling_probs=True)
    assert [one.top for one in none.logprobs] == [(), (), ()]


def test_a_slot_that_keeps_none_says_so() -> None:
    with pytest.raises(InputError, match="no candidates were kept of token 0"):
        Slot(0, 10, 4).logprobs(0)
    sampler, rows = GreedySampler(), Rows(3)
    rows.set(np.eye(3, dtype=np.float32)[[2]])
    assert sampler.candidates(sampler.choose(rows, 0), 2) == (0.0, [(2, 0.0)])
    assert Sampler().candidates(1, 0) == (0.0, [])
    for token, top in ((-1, 1), (0, -1), (0, 1 << 30)):
        with pytest.raises(InputError, match="token must be >= 0 and top in"):
            sampler.candidates(token, top)
