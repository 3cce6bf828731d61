"""Requests on an attached Llama: logprobs, states, processors, criteria, early ends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ngramspec
from helpers.adversaries import FakeDrafter, garbage
from ngramspec import NgramDraft, attach
from ngramspec.errors import StateError

PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
LOOP: dict[str, Any] = {"spec": "ngram-simple", "policy": "fixed", "size_n": 3, "size_m": 16}
GREEDY: dict[str, Any] = {"max_tokens": 80, "temperature": 0.0}


def test_logprobs_are_refused_while_attached_and_right_afterwards(make_llama: Any) -> None:
    options = {"max_tokens": 12, "temperature": 0.0, "logprobs": 3, "echo": True}
    # Short prompts: the same tokens are then computed in the same batches in both.
    plain = make_llama("llama", logits_all=True)
    expected = plain.create_completion("abc the quick", **options)["choices"]
    llama = make_llama("llama", logits_all=True)
    with attach(llama, **LOOP):
        text = llama.create_completion("abc the quick", max_tokens=12, temperature=0.0)
        with pytest.raises(StateError, match="logprobs"):
            llama.create_completion("abc the quick", **options)
        with pytest.raises(StateError, match="logprobs"):
            list(llama.create_completion("abc the quick", stream=True, **options))
        with pytest.raises(StateError, match="logprobs"):
            llama.create_chat_completion(
                [{"role": "user", "content": "a"}], logprobs=True, top_logprobs=2, max_tokens=2
            )
        with pytest.raises(StateError, match="scores"):
            llama.eval_logits
    assert expected[0]["text"].endswith(text["choices"][0]["text"])
    assert llama.create_completion("abc the quick", **options)["choices"] == expected


def test_a_row_without_logits_raises_instead_of_ending_the_process(make_llama: Any) -> None:
    llama = make_llama("llama")
    with attach(llama, **LOOP):
        llama.eval(llama.tokenize(b"abc the quick"))
        assert isinstance(llama.sample(temp=0.0), int)
        with pytest.raises(StateError, match="no logits for position 3"):
            llama.sample(temp=0.0, idx=3)


def test_n_ctx_that_the_library_rounds_up_ends_where_plain_decoding_does(make_llama: Any) -> None:
    forever = {"max_tokens": None, "temperature": 0.0}
    plain = make_llama("llama", n_ctx=210).create_completion(PROSE, **forever, seed=1)
    assert plain["usage"]["total_tokens"] == 256
    draft = NgramDraft(drafter=FakeDrafter(lambda history, limit: [1] * limit), max_draft=16)
    llama = make_llama("llama", n_ctx=210)
    attach(llama, draft)
    for _ in range(2):
        result = llama.create_completion(PROSE, **forever, seed=1)
        assert result["choices"] == plain["choices"]
        assert result["usage"] == plain["usage"]
    with pytest.raises(ValueError, match="exceed context"):
        llama.create_completion(PROSE * 3, max_tokens=5)


def test_a_cache_of_states_works_and_stays_small(make_llama: Any) -> None:
    from llama_cpp import LlamaRAMCache

    texts = []
    for attached in (False, True):
        llama = make_llama("markov", logits_all=True)
        llama.set_cache(LlamaRAMCache())
        if attached:
            attach(llama, **LOOP)
        one = []
        for prompt in (PROSE, "other words", PROSE + "more"):
            one.append(llama.create_completion(prompt, max_tokens=60, temperature=0.0)["choices"])
        texts.append(one)
        rows = {state.scores.shape[0] for state in llama.cache.cache_state.values()}
        assert rows == {1} if attached else min(rows) > 60
    assert texts[0] == texts[1]


def test_states_move_between_attached_and_detached(make_llama: Any) -> None:
    llama = make_llama("markov", logits_all=True)
    llama.create_completion(PROSE, max_tokens=40, temperature=0.0)
    outside = llama.save_state()
    with attach(llama, **LOOP):
        llama.load_state(outside)
        first = llama.create_completion(PROSE, max_tokens=60, temperature=0.0)["choices"]
        inside = llama.save_state()
    llama.load_state(inside)
    assert np.isnan(llama.scores[: inside.n_tokens]).all()
    assert llama.create_completion(PROSE, max_tokens=60, temperature=0.0)["choices"] == first


def test_a_logits_processor_works_with_drafts_and_sees_no_unverified_token(make_llama: Any) -> None:
    from llama_cpp import LogitsProcessorList

    def answers(llama: Any) -> tuple[Any, list[list[int]]]:
        seen: list[list[int]] = []

        def shape(input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
            seen.append(input_ids.tolist())
            scores = scores.copy()
            scores[300 + len(input_ids) % 40] += 3.0
            return scores

        processors = LogitsProcessorList([shape])
        options = {"max_tokens": 60, "temperature": 0.8, "seed": 5}
        result = llama.create_completion(PROSE, logits_processor=processors, **options)
        return result["choices"], seen

    expected = answers(make_llama("llama"))
    llama = make_llama("llama")
    for drafter in (garbage(llama.n_vocab()), ngramspec.create_drafter("ngram-cache")):
        llama.reset()
        with attach(llama, drafter=drafter, max_draft=8) as attachment:
            assert answers(llama) == expected
            assert attachment.draft.counters.drafted > 0


def test_stopping_criteria_see_what_they_see_without_drafts(make_llama: Any) -> None:
    from llama_cpp import StoppingCriteriaList

    def answers(llama: Any) -> tuple[Any, list[list[int]]]:
        seen: list[list[int]] = []

        def stop(input_ids: np.ndarray, logits: np.ndarray) -> bool:
            seen.append(input_ids.tolist())
            return len(input_ids) > 250

        criteria = StoppingCriteriaList([stop])
        options = {"temperature": 0.0, "stop": ["fzwr"], "stopping_criteria": criteria}
        result = [
            llama.create_completion(PROSE + extra, max_tokens=limit, **options)["choices"]
            for extra, limit in (("", 30), ("vui", 30), ("xyz", 90))
        ]
        return result, seen

    expected = answers(make_llama("markov"))
    llama = make_llama("markov")
    drafter = FakeDrafter(lambda history, limit: [int(history[-23])] * limit)
    with attach(llama, drafter=drafter, max_draft=12):
        assert answers(llama) == expected
    llama.reset()
    with attach(llama, **LOOP):
        assert answers(llama) == expected


def test_a_generator_that_detach_resets_says_so(make_llama: Any) -> None:
    llama = make_llama("markov", logits_all=True)
    prompt = llama.tokenize(PROSE.encode())
    attachment = attach(llama, **LOOP)
    loop = llama.generate(prompt, temp=0.0)
    next(loop)
    attachment.detach()
    with pytest.raises(StateError, match="start it again"):
        next(loop)
    expected = make_llama("markov").create_completion(PROSE, max_tokens=40, temperature=0.0)
    answer = llama.create_completion(PROSE, max_tokens=40, temperature=0.0, logprobs=1)
    assert answer["choices"][0]["text"] == expected["choices"][0]["text"]


def test_a_generator_goes_on_after_detach(make_llama: Any) -> None:
    llama = make_llama("markov")
    prompt = llama.tokenize(PROSE.encode())
    expected = list(itertools.islice(llama.generate(prompt, temp=0.0), 40))
    for count in range(1, 24):
        attachment = attach(llama, **LOOP)
        loop = llama.generate(prompt, temp=0.0)
        tokens = list(itertools.islice(loop, count))
        attachment.detach()
        assert [*tokens, *itertools.islice(loop, 40 - count)] == expected
        loop.close()


def test_what_a_closed_request_leaves_behind_is_verified(make_llama: Any) -> None:
    llama = make_llama("markov")
    prompt = llama.tokenize(PROSE.encode())
    with attach(llama, drafter=FakeDrafter(lambda history, limit: [7] * limit), max_draft=9):
        loop = llama.generate(prompt, temp=0.0)
        tokens = [next(loop) for _ in range(5)]
        assert llama.n_tokens > len(prompt) + 4
        loop.close()
        assert llama._input_ids.tolist() == prompt + tokens[:4]
        # An older request that is closed late changes nothing.
        old, new = llama.generate(prompt, temp=0.0), llama.generate(prompt, temp=0.0)
        next(old)
        expected = [next(new) for _ in range(20)]
        before = llama.n_tokens
        old.close()
        assert llama.n_tokens == before
        assert expected[:5] == tokens


def test_tokens_sent_into_generate_are_compared_as_without_drafts(make_llama: Any) -> None:
    llama = make_llama("markov")
    prompt = llama.tokenize(PROSE.encode())
    expected = list(zip(range(12), llama.generate(prompt, temp=0.0), strict=False))
    llama.reset()
    with attach(llama, **LOOP):
        loop = llama.generate(prompt, temp=0.0)
        got = [next(loop), loop.send([token for _, token in expected[1:6]])]
        got += [next(loop) for _ in range(10)]
    assert got == [token for _, token in expected]


@pytest.mark.parametrize("n_batch", [2, 64, 512])
def test_an_abandoned_generator_leaves_verified_tokens_only(make_llama: Any, n_batch: int) -> None:
    plain = make_llama("markov")
    start = plain.create_completion(PROSE, **GREEDY)["choices"][0]["text"]
    prompt = plain.tokenize((PROSE + start).encode())  # the text that follows repeats itself
    expected = plain.create_completion(prompt, **GREEDY)["choices"][0]["text"]
    llama = make_llama("markov", n_batch=n_batch)
    attachment = attach(llama, **LOOP)
    for count in range(1, 24):
        taken = []
        for token in llama.generate(prompt, temp=0.0):
            taken.append(token)
            if len(taken) == count:
                break
        assert llama.n_tokens <= len(prompt) + count
        held = [int(token) for token in llama.input_ids[: llama.n_tokens]]
        assert held == [*prompt, *taken][: llama.n_tokens]
    assert attachment.draft.counters.drafted > 0
    assert llama.create_completion(prompt, **GREEDY)["choices"][0]["text"] == expected


def test_a_generator_that_outlives_its_llama_leaves_it_alone(make_llama: Any) -> None:
    llama = make_llama("markov")
    attachment = attach(llama, **LOOP)
    loop = llama.generate(llama.tokenize(PROSE.encode()), temp=0.0)
    for _ in loop:
        if attachment._verified < llama.n_tokens:
            break
    llama.close()
    llama._ctx.memory = None  # what it points to is freed; llama-cpp-python looks at None no more
    loop.close()
    assert attachment._verified < llama.n_tokens


def ends(llama: Any) -> dict[str, dict[str, Any]]:
    """Return requests that end in the middle of what repeats itself, by kind of end."""
    greedy = {"prompt": PROSE, "temperature": 0.0}
    text = llama.create_completion(PROSE, **GREEDY)["choices"][0]["text"]
    return {
        **{f"limit {n}": {**greedy, "max_tokens": n} for n in (1, 2, 20, 50, 57, 64, 71, 78)},
        "stop": {**greedy, "max_tokens": 80, "stop": [text[30:36]]},
        "stream": {**greedy, "max_tokens": 31, "stream": True},
        "criterion": {**greedy, "max_tokens": 80, "stopping_criteria": until(40)},
    }


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

        def noted(host: Any, ids: Any) -> Any:
            tokens = propose(host, ids)
            self._drafts.append((len(ids), tokens.tolist()))
            return tokens

        llama.generate, draft._next_draft = watched, noted

    def _right(self, start: int, draft: list[int]) -> int:
        pairs = zip(draft, self.text[start:], strict=False)
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


@pytest.mark.parametrize("n_batch", [8, 64, 512])
def test_the_end_of_an_answer_is_counted_and_learnt(make_llama: Any, n_batch: int) -> None:
    requests = ends(make_llama("markov", n_batch=n_batch))
    draft = NgramDraft(**LOOP)
    llama = make_llama("markov", n_batch=n_batch)
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


def test_a_chat_that_ends_at_its_end_token_is_counted(make_llama: Any) -> None:
    draft = NgramDraft(policy="fixed")
    llama = make_llama("embedded", n_ctx=1024, n_batch=1024)
    attach(llama, draft)
    watch = Watch(llama, draft)
    code = "def area(width, height):\n    return width * height\n"
    content = f"Repeat this code:\n\n```python\n{code}```"
    for _ in range(3):
        llama.create_chat_completion([{"role": "user", "content": content}], temperature=0.0)
        assert draft.drafter.history(0).tolist() == watch.text
        assert llama._model.token_eos() in watch.text[-1:] or len(watch.text) > 20
    assert draft.counters.accepted == watch.accepted > 60
