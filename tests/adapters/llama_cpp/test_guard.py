"""Llama objects made with draft_model=NgramDraft(): long prompts, small batches, early ends."""

from __future__ import annotations

import itertools
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


def ends(llama: Any) -> dict[str, dict[str, Any]]:
    """Return requests that end in the middle of what repeats itself, by kind of end."""
    greedy = {"prompt": PROSE, "temperature": 0.0}
    text = make_text(llama)
    return {
        **{f"limit {n}": {**greedy, "max_tokens": n} for n in (1, 2, 20, 50, 57, 64, 71, 78)},
        "stop": {**greedy, "max_tokens": 80, "stop": [text[30:36]]},
        "stream": {**greedy, "max_tokens": 31, "stream": True},
        "criterion": {**greedy, "max_tokens": 80, "stopping_criteria": until(40)},
    }


def make_text(llama: Any) -> str:
    return str(llama.create_completion(PROSE, **GREEDY)["choices"][0]["text"])


def until(count: int) -> Any:
    from llama_cpp import StoppingCriteriaList

    return StoppingCriteriaList([lambda ids, logits: len(ids) >= 190 + count])


class Watch:
    """Notes the tokens that a Llama's generators give, and the drafts that they verify."""

    def __init__(self, llama: Any, draft: Any) -> None:
        self.text: list[int] = []
        self.accepted = 0
        self._drafts: list[tuple[int, list[int]]] = []
        generate = llama.generate
        propose = draft._next_draft

        def watched(tokens: Any, **kwargs: Any) -> Any:
            self.text, self._drafts, size = list(tokens), [], len(tokens)
            loop = generate(tokens, **kwargs)
            try:
                for token in loop:
                    self.text.append(token)
                    yield token
            finally:
                loop.close()
                assert len(self.text) >= size
                self.accepted += sum(self._right(*pair) for pair in self._drafts)

        def noted(stream: Any, ids: Any, given: Any) -> Any:
            tokens = propose(stream, ids, given)
            self._drafts.append((len(ids), tokens.tolist()))
            return tokens

        llama.generate, draft._next_draft = watched, noted

    def _right(self, start: int, draft: list[int]) -> int:
        pairs = zip(draft, self.text[start:], strict=False)
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("n_batch", [64, 512])
def test_the_end_of_an_answer_is_counted_and_learnt(
    make_llama: Any, attached: bool, n_batch: int
) -> None:
    settings = {"n_ctx": 512, "n_batch": n_batch}
    requests = ends(make_llama("markov", **settings))
    draft = NgramDraft(**LOOP)
    llama = make_llama("markov", **settings, draft_model=None if attached else draft)
    if attached:
        attach(llama, draft)
    watch = Watch(llama, draft)
    for name, request in requests.items():
        answer = llama.create_completion(**request)
        if request.get("stream"):
            list(answer)
        assert draft.drafter.history(0).tolist() == watch.text, name
        assert draft.counters.accepted == watch.accepted, name
        assert draft.stats()["ngram-simple"].num_accepted_tokens == watch.accepted, name
    assert watch.accepted > 60


@pytest.mark.parametrize("attached", [False, True])
def test_a_chat_that_ends_at_its_end_token_is_counted(make_llama: Any, attached: bool) -> None:
    draft = NgramDraft(policy="fixed")
    settings = {"n_ctx": 1024, "n_batch": 1024, "draft_model": None if attached else draft}
    llama = make_llama("embedded", **settings)
    if attached:
        attach(llama, draft)
    watch = Watch(llama, draft)
    code = "def area(width, height):\n    return width * height\n"
    content = f"Repeat this code:\n\n```python\n{code}```"
    for _ in range(3):
        llama.create_chat_completion([{"role": "user", "content": content}], temperature=0.0)
        assert draft.drafter.history(0).tolist() == watch.text
        assert llama._model.token_eos() in watch.text[-1:] or len(watch.text) > 20
    assert draft.counters.accepted == watch.accepted > 60
