"""Same seed, same text, with drafts and without: families, modes, requests, hostile drafters.

All of it in the bit-exact setting, where equality is a fact and not a hope: see
docs/explanation/exactness.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.adversaries import garbage, half_right
from ngramspec.hosts.llama_cpp import NgramDraft, attach

FAMILIES = {
    "llama": {},
    "big-vocab": {},
    "gemma3": {"swa_full": True},
    # A small sliding-window cache that wraps round puts cells in another order, so other rounding:
    # here it is large enough not to wrap; test_drop_in_exactness has the other case.
    "gemma3-small-cache": {"swa_full": False, "n_batch": 512},
    "embedded": {"n_ctx": 768},
}
CODE = (
    "<|im_start|>user\nRepeat this code:\n```python\ndef total(items):\n    result = 0\n"
    "    for item in items:\n        result += item.price * item.count\n    return result\n```"
    "<|im_end|>\n<|im_start|>assistant\n"
)
PROSE = "abc the quick brown fox jumps over the lazy dog. " * 4
GRAMMAR = 'root ::= ([a-z] | " ")+ "."?'
SPEC = {"policy": "fixed", "spec": "ngram-simple,ngram-cache", "size_n": 4, "size_m": 12}
N_BATCH = {"draft_model": 768, "attach": 64}
SHORT = ("greedy", "sampled", "stop", "stream")


def requests() -> dict[str, dict[str, Any]]:
    from llama_cpp import LlamaGrammar

    grammar = LlamaGrammar.from_string(GRAMMAR, verbose=False)
    return {
        "greedy": {"temperature": 0.0, "max_tokens": 60},
        "sampled": {"temperature": 0.8, "max_tokens": 50},
        "hot": {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 30},
        "stop": {"temperature": 0.0, "max_tokens": 60, "stop": ["qx", "vu", "return"]},
        "penalty": {"temperature": 0.8, "max_tokens": 40, "repeat_penalty": 1.3},
        "grammar": {"temperature": 0.8, "max_tokens": 30, "grammar": grammar},
        "mirostat": {"temperature": 0.8, "max_tokens": 30, "mirostat_mode": 2},
        "bias": {"temperature": 0.8, "max_tokens": 30, "logit_bias": {280: 2.0}},
        "stream": {"temperature": 0.8, "max_tokens": 40, "stream": True, "stop": ["zz", "the"]},
    }


def run(llama: Any, prompt: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return text and reason of every request, each with its own seed."""
    results = {}
    for number, (name, request) in enumerate(requests().items()):
        if only and name not in only:
            continue
        answer = llama.create_completion(prompt, seed=number + 1, **request)
        if request.get("stream"):
            choices = [chunk["choices"][0] for chunk in answer]
            results[name] = (
                "".join(choice["text"] for choice in choices),
                choices[-1]["finish_reason"],
            )
        else:
            choice = answer["choices"][0]
            results[name] = (choice["text"], choice["finish_reason"], answer["usage"])
    return results


def make_family(make_llama: Callable[..., Any], family: str, **settings: Any) -> Any:
    name = "gemma3" if family.startswith("gemma3") else family
    return make_llama(name, **{**settings, **FAMILIES[family]})


def drafted(make_llama: Callable[..., Any], family: str, mode: str, draft: NgramDraft) -> Any:
    """Return a model that the draft was attached to, or given to at its start."""
    n_batch = N_BATCH[mode]
    if mode == "draft_model":
        return make_family(make_llama, family, draft_model=draft, n_batch=n_batch)
    llama = make_family(make_llama, family, n_batch=n_batch)
    attach(llama, draft)
    return llama


@pytest.fixture(scope="module")
def plain_texts() -> dict[tuple[str, str], dict[str, Any]]:
    """Keep what is said without drafts, by family and mode."""
    return {}


def plain(make_llama: Any, texts: Any, family: str, mode: str) -> tuple[str, dict[str, Any]]:
    """Return a prompt, and what the family says to each of its requests without drafts.

    Requests of all kinds where passes take no time.
    """
    prompt = CODE if family == "embedded" else PROSE
    if (family, mode) not in texts:
        only = () if family in ("llama", "embedded") else SHORT
        llama = make_family(make_llama, family, n_batch=N_BATCH[mode])
        texts[family, mode] = run(llama, prompt, only)
    return prompt, texts[family, mode]


@pytest.mark.parametrize("mode", ["draft_model", "attach"])
@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_the_same_with_drafts(
    make_llama: Any, plain_texts: Any, family: str, mode: str
) -> None:
    prompt, expected = plain(make_llama, plain_texts, family, mode)
    draft = NgramDraft(**SPEC)
    llama = drafted(make_llama, family, mode, draft)
    assert run(llama, prompt, tuple(expected)) == expected
    assert draft.counters.accepted > 0
    assert draft.counters.failures == 0


@pytest.mark.parametrize("mode", ["draft_model", "attach"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma3-small-cache", "embedded"])
def test_text_is_the_same_when_drafts_are_garbage(
    make_llama: Any, plain_texts: Any, family: str, mode: str
) -> None:
    prompt, texts = plain(make_llama, plain_texts, family, mode)
    draft = NgramDraft(drafter=garbage(make_family(make_llama, family).n_vocab()), max_draft=8)
    llama = drafted(make_llama, family, mode, draft)
    assert run(llama, prompt, SHORT) == {name: texts[name] for name in SHORT}
    assert draft.counters.drafted > 300


@pytest.mark.parametrize("family", ["llama", "gemma3-small-cache", "big-vocab"])
def test_text_is_the_same_after_rollbacks_of_every_length(make_llama: Any, family: str) -> None:
    plain = make_family(make_llama, family, n_batch=64)
    prompt = plain.tokenize(PROSE.encode())
    expected = plain.create_completion(prompt, max_tokens=150, temperature=0.0)
    answer = prompt + plain._input_ids.tolist()[len(prompt) :]
    drafter = half_right([answer], plain.n_vocab())
    llama = make_family(make_llama, family, n_batch=64)
    attachment = attach(llama, NgramDraft(drafter=drafter, max_draft=40))
    result = llama.create_completion(prompt, max_tokens=150, temperature=0.0)
    assert result["choices"] == expected["choices"]
    assert attachment.draft.counters.drafted > 150


@pytest.mark.parametrize("name", ["chat", "embedded"])
@pytest.mark.parametrize("mode", ["draft_model", "attach"])
@pytest.mark.parametrize("stream", [False, True])
def test_chat_ends_where_it_ends_without_drafts(
    make_llama: Any, name: str, mode: str, stream: bool
) -> None:
    draft = NgramDraft("ngram-simple", size_n=2, size_m=24)
    settings = {"n_ctx": 1024, "n_batch": 1024}
    plain = make_llama(name, **settings)
    llama = make_llama(name, **settings, draft_model=draft if mode == "draft_model" else None)
    if mode == "attach":
        attach(llama, draft)
    turns: list[dict[str, str]] = []
    reasons = set()
    text = "Repeat this text:\n\nThe files hold the names, and the names hold the files."
    for content in (text, text, "again abcd"):
        turns.append({"role": "user", "content": content})
        answers = [_chat(model, turns, stream, seed=len(turns)) for model in (plain, llama)]
        assert answers[0] == answers[1]
        reasons.add(answers[0][1])
        turns.append({"role": "assistant", "content": answers[0][0]})
    assert "stop" in reasons
    assert draft.counters.drafts > 0


def _chat(llama: Any, turns: list[dict[str, str]], stream: bool, seed: int) -> tuple[str, str]:
    answer = llama.create_chat_completion(
        turns, temperature=0.3, max_tokens=150, stream=stream, seed=seed, stop=["%%"]
    )
    if not stream:
        return answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
    choices = [chunk["choices"][0] for chunk in answer]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


def test_end_tokens_in_drafts_never_reach_the_host(make_llama: Any) -> None:
    from helpers.gguf_models import EOS, IM_END

    drafter = garbage(6)
    draft = NgramDraft(drafter=drafter, max_draft=20)
    seen: list[int] = []

    def spy(input_ids: Any) -> Any:
        proposed = draft(input_ids)
        seen.extend(proposed.tolist())
        return proposed

    llama = make_llama("chat", draft_model=spy)
    llama.create_completion(PROSE, max_tokens=60, temperature=0.8, seed=3)
    assert seen
    assert not set(seen) & {EOS, IM_END}
