"""ChainSampler chooses what llama.cpp's own samplers choose, from the same rows and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.llama_sampling import ReferenceSampler
from helpers.machines import SETTINGS as EXAMPLES
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec._native.hosts.llama import ChainSampler
from ngramspec.engine.sampling import Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.sampler_chain import Chains
from ngramspec.llamacpp.target import LlamaTarget

CONTEXT = 256
GRAMMAR = 'root ::= ([a-m] | " "){8,} "."?'
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "hot": {"temperature": 1.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "plain": {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0},
    "top_k 1": {"top_k": 1},
    "top_k 128": {"top_k": 128, "temperature": 1.5},
    "top_k 129": {"top_k": 129, "temperature": 1.5},
    "top_p": {"top_k": 0, "top_p": 0.7, "temperature": 1.5},
    "min_p": {"top_k": 0, "min_p": 0.2, "temperature": 1.5},
    "repeat": {"repeat_penalty": 1.3, "temperature": 1.2},
    "frequency": {"frequency_penalty": 0.7, "presence_penalty": -0.4, "repeat_last_n": 20},
    "repeat all": {"repeat_penalty": 1.1, "repeat_last_n": -1, "top_k": 0},
    "repeat greedy": {"repeat_penalty": 1.2, "temperature": 0.0},
    "rewarded": {"repeat_penalty": 0.5, "frequency_penalty": -3.0},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "dry greedy": {"dry_multiplier": 1.5, "dry_penalty_last_n": 30, "temperature": 0.0},
    "dry breakers": {"dry_multiplier": 2.0, "dry_sequence_breakers": ("a", "bc", "", "é")},
    "dry and repeat": {"dry_multiplier": 0.5, "repeat_penalty": 1.2, "repeat_last_n": 8},
    "typical": {"typical_p": 0.6, "temperature": 1.3},
    "typical of all": {"typical_p": 0.6, "top_k": 0},
    "top_n_sigma": {"top_n_sigma": 1.0, "temperature": 1.5},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05, "temperature": 1.2},
    "min_keep": {"min_keep": 5, "top_p": 0.1, "min_p": 0.5, "temperature": 2.0},
    "dynatemp": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_eta": 0.3},
    "bias": {"logit_bias": {300: 5.0, 301: -5.0, 333: float("-inf"), 2: 1.5}},
    "bias greedy": {"logit_bias": {300: 50.0}, "temperature": 0.0, "repeat_penalty": 3.0},
    "ignore_eos": {"ignore_eos": True, "temperature": 3.0},
    "other order": {"samplers": ("temperature", "top_p", "top_k", "min_p"), "top_k": 7},
    "penalties last": {
        "samplers": ("top_k", "temperature", "penalties", "dry"),
        "repeat_penalty": 1.3,
        "dry_multiplier": 0.5,
        "temperature": 1.5,
    },
    "penalties last, greedy": {
        "samplers": ("min_p", "penalties", "temperature"),
        "min_p": 0.3,
        "repeat_penalty": 3.0,
        "temperature": 0.0,
    },
    "dry first": {
        "samplers": ("dry", "penalties", "top_k", "top_p", "temperature"),
        "repeat_penalty": 1.2,
        "dry_multiplier": 0.8,
        "top_k": 20,
    },
    "infill": {"samplers": ("top_k", "top_p", "infill"), "temperature": 1.0},
    "grammar": {"grammar": GRAMMAR},
    "grammar greedy": {"grammar": GRAMMAR, "temperature": 0.0},
    "grammar and penalty": {"grammar": GRAMMAR, "repeat_penalty": 1.4, "temperature": 1.5},
    "grammar and top_k 3": {"grammar": GRAMMAR, "top_k": 3},
}


@pytest.fixture(scope="module")
def target(model: LlamaModel) -> LlamaTarget:
    return LlamaTarget(model, context_size=CONTEXT, threads=1, flash_attn=True)


def random_logits(size: int, vocab: int, seed: int) -> np.ndarray:
    """Return rows with few values that are large, as a model's, and ties among them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.0, (size, vocab)).astype(np.float32)
    return np.round(logits * 8) / np.float32(8)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_llamas_own_chain(target: LlamaTarget, name: str) -> None:
    sampling = Sampling(**SETTINGS[name])
    prompt = np.random.default_rng(2).integers(0, target.vocab_size, 90).astype(np.int32)
    logits = random_logits(60, target.vocab_size, seed=3)
    rows = Rows(target.vocab_size)
    rows.set(logits)
    ours = target.sampler(sampling, 11)
    theirs = ReferenceSampler(target.model, sampling, 11, CONTEXT)
    ours.accept_prompt(prompt)
    for token in prompt.tolist():
        theirs.accept(token, generated=False)
    for index in range(60):
        token = theirs.choose(logits[index])
        assert ours.choose(rows, index) == token, index
        if token < 0 or target.is_end(token):
            break
        ours.accept(token)
        theirs.accept(token)
    theirs.close()
    assert index > (0 if name == "infill" else 3)  # infill likes to end


@pytest.mark.parametrize("name", SETTINGS)
def test_candidates_are_those_that_llamas_own_chain_leaves(target: LlamaTarget, name: str) -> None:
    sampling = Sampling(**SETTINGS[name])
    logits = random_logits(12, target.vocab_size, seed=4)
    rows = Rows(target.vocab_size)
    rows.set(logits)
    ours = target.sampler(sampling, 11)
    theirs = ReferenceSampler(target.model, sampling, 11, CONTEXT)
    for index, top in enumerate([3, 0, 1, 1000, 40, 7, 3, 0, 1, 1000, 40, 7]):
        token = theirs.choose(logits[index])
        assert ours.choose(rows, index) == token
        if token < 0:
            break
        log_p, likeliest = ours.candidates(token, top)
        expected, left = theirs.candidates(token, top)
        assert np.exp(log_p) == pytest.approx(expected, rel=1e-12), index
        assert [one for one, _ in likeliest] == [one for one, _ in left], index
        assert np.exp([p for _, p in likeliest]) == pytest.approx([p for _, p in left], rel=1e-12)
        if target.is_end(token):
            break
        ours.accept(token)
        theirs.accept(token)
    theirs.close()


def test_candidates_of_no_choice_are_none(target: LlamaTarget) -> None:
    sampler = target.sampler(Sampling(), 1)
    assert sampler.candidates(3, 5) == (float("-inf"), [])


@pytest.mark.parametrize("name", ["default", "repeat", "dry", "mirostat 2", "xtc", "hot"])
def test_generated_text_is_that_of_llama_sampler_sample(target: LlamaTarget, name: str) -> None:
    sampling = Sampling(**SETTINGS[name])
    lib, context = target.model.library.lib, target._handle.address
    prompt = target.model.tokenize("the quick brown fox jumps over the lazy dog. the quick")
    ours = target.sampler(sampling, 5)
    theirs = ReferenceSampler(target.model, sampling, 5, CONTEXT)
    ours.accept_prompt(prompt)
    for token in prompt.tolist():
        theirs.accept(token, generated=False)
    target.truncate(0, 0)
    batch, rows, tokens = Batch(64), Rows(target.vocab_size), prompt
    ids: list[int] = []
    for position in range(prompt.size, prompt.size + 40):
        batch.clear()
        batch.add(0, position - tokens.size, tokens)
        target.decode(batch, rows)
        sampled = int(lib.llama_sampler_sample(theirs.chain, context, -1))
        assert ours.choose(rows, 0) == sampled
        ours.accept(sampled)
        ids.append(sampled)
        tokens = np.array([sampled], dtype=np.int32)
    theirs.close()
    assert len(set(ids)) > 5


LOGITS = st.one_of(
    st.sampled_from([0.0, 1.0, 5.0, float("nan"), float("inf"), float("-inf"), 3e38, -3e38]),
    st.floats(-20, 20, width=16),
)
FAST = ["default", "plain", "top_k 1", "top_k 128", "repeat", "rewarded", "repeat greedy"]
FAST += ["dry", "dry greedy", "bias", "bias greedy", "xtc", "typical", "ignore_eos"]


def slow(target: LlamaTarget, sampling: Sampling, seed: int) -> Any:
    """Return the same sampler without the short cut for the largest logits."""
    chains = Chains(target.model, CONTEXT)
    fill = chains._fill
    chains._fill = lambda *arguments: (0, fill(*arguments)[1])  # type: ignore[method-assign]
    return chains.sampler(sampling, seed)


@EXAMPLES
@given(st.data())
def test_the_short_cut_never_shows(target: LlamaTarget, data: st.DataObject) -> None:
    """Also with equal logits, NaN and infinities: the largest are found in the same order."""
    sampling = Sampling(**SETTINGS[data.draw(st.sampled_from(FAST))])
    vocab, seed = target.vocab_size, data.draw(st.integers(0, 3))
    distinct = np.array(data.draw(st.lists(LOGITS, min_size=1, max_size=40)), dtype=np.float32)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    logits = distinct[rng.integers(0, distinct.size, (6, vocab))]
    rows = Rows(vocab)
    rows.set(logits)
    fast, plain = target.sampler(sampling, seed), slow(target, sampling, seed)
    assert isinstance(fast, ChainSampler)
    prompt = rng.integers(0, vocab, 12).astype(np.int32)
    fast.accept_prompt(prompt)
    plain.accept_prompt(prompt)
    for index in range(6):
        token = fast.choose(rows, index)
        assert token == plain.choose(rows, index)
        if token >= 0:
            fast.accept(token)
            plain.accept(token)
