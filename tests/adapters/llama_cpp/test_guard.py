"""Llama objects made with draft_model=NgramDraft(): long prompts, small batches, early ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ngramspec import NgramDraft, attach
from ngramspec.adapters.llama_cpp.patches import NoScores

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}
GREEDY: dict[str, Any] = {"max_tokens": 80, "temperature": 0.0}


@pytest.mark.parametrize("n_batch", [2, 8, 64, 128])
def test_a_prompt_beyond_n_batch_works_and_drafts_are_accepted(
    make_llama: Any, n_batch: int
) -> None:
    settings = {"n_ctx": 512, "n_batch": n_batch}
    expected = make_llama("markov", **settings).create_completion(PROSE, **GREEDY)
    assert expected["usage"]["prompt_tokens"] > n_batch
    llama = make_llama("markov", **settings, draft_model=NgramDraft(**LOOP))
    for _ in range(2):
        assert llama.create_completion(PROSE, **GREEDY)["choices"] == expected["choices"]
    assert llama.draft_model.counters.accepted > 20


def test_the_usual_setting_takes_long_prompts(make_llama: Any) -> None:
    prompt = PROSE * 12
    plain = make_llama("markov", n_ctx=4096, n_batch=512)
    expected = plain.create_completion(prompt, **GREEDY)
    llama = make_llama("markov", n_ctx=4096, n_batch=512, draft_model=NgramDraft())
    assert llama.create_completion(prompt, **GREEDY)["choices"] == expected["choices"]
    assert isinstance(llama.scores, NoScores)


def test_a_short_text_leaves_the_host_as_it_is(make_llama: Any) -> None:
    llama = make_llama("markov", n_ctx=512, n_batch=512, draft_model=NgramDraft(**LOOP))
    made = llama.create_completion("abc", **GREEDY, logprobs=1)
    assert len(made["choices"][0]["logprobs"]["tokens"]) == made["usage"]["completion_tokens"]
    assert isinstance(llama.scores, np.ndarray)


def test_a_model_that_cannot_be_attached_takes_long_prompts_without_drafts(
    make_llama: Any,
) -> None:
    settings = {"n_ctx": 512, "n_batch": 64}
    expected = make_llama("mamba", **settings).create_completion(PROSE, **GREEDY)
    llama = make_llama("mamba", **settings, draft_model=NgramDraft(**LOOP))
    assert llama.create_completion(PROSE, **GREEDY)["choices"] == expected["choices"]
    assert llama.draft_model.counters.drafted == 0


def test_other_draft_models_and_heal_off_are_left_to_the_host(make_llama: Any) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    for draft in (LlamaPromptLookupDecoding(), NgramDraft(**LOOP, heal=False)):
        llama = make_llama("markov", n_ctx=512, n_batch=64, draft_model=draft)
        assert "eval" not in llama.__dict__
        with pytest.raises(ValueError, match="broadcast"):
            llama.create_completion(PROSE, **GREEDY)


@pytest.mark.parametrize("n_batch", [64, 512])
def test_an_abandoned_generator_leaves_verified_tokens_only(make_llama: Any, n_batch: int) -> None:
    plain = make_llama("markov", n_ctx=512)
    start = plain.create_completion(PROSE, **GREEDY)["choices"][0]["text"]
    prompt = plain.tokenize((PROSE + start).encode())  # the text that follows repeats itself
    expected = plain.create_completion(prompt, **GREEDY)["choices"][0]["text"]
    llama = make_llama("markov", n_ctx=512, n_batch=n_batch, draft_model=NgramDraft(**LOOP))
    for count in range(1, 24):
        taken = []
        for token in llama.generate(prompt, temp=0.0):
            taken.append(token)
            if len(taken) == count:
                break
        assert llama.n_tokens <= len(prompt) + count
        held = [int(token) for token in llama.input_ids[: llama.n_tokens]]
        assert held == [*prompt, *taken][: llama.n_tokens]
    assert llama.draft_model.counters.drafted > 0
    assert llama.create_completion(prompt, **GREEDY)["choices"][0]["text"] == expected


@pytest.mark.parametrize("attached", [False, True])
def test_a_generator_that_outlives_its_llama_leaves_it_alone(
    make_llama: Any, attached: bool
) -> None:
    llama = make_llama("markov", draft_model=None if attached else NgramDraft(**LOOP))
    if attached:
        attach(llama, **LOOP)
    unverified = llama.generate.__self__._unverified
    loop = llama.generate(llama.tokenize(PROSE.encode()), temp=0.0)
    for _ in loop:
        if unverified._verified < llama.n_tokens:
            break
    llama.close()
    llama._ctx.memory = None  # what it points to is freed; llama-cpp-python looks at None no more
    loop.close()
    assert unverified._verified < llama.n_tokens
