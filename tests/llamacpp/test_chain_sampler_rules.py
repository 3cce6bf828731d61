"""Grammars, impossible rows, end tokens, drafts and every documented error of ChainSampler."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ngramspec._native.engine.decode import GreedySampler, Rows
from ngramspec._native.engine.verifier import verify
from ngramspec._native.grammar.matcher import Matcher
from ngramspec._native.hosts.llama import Candidates, ChainSampler
from ngramspec.engine.sampling import Sampling
from ngramspec.errors import BackendError, InputError, StateError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.sampler_chain import MAX_SEED, Chains
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.text.grammar import read_grammar


@pytest.fixture(scope="module")
def target(model: LlamaModel) -> LlamaTarget:
    return LlamaTarget(model, context_size=256, threads=1)


def id_of(target: LlamaTarget, text: str) -> int:
    (token,) = target.model.tokenize(text, add_special=False, parse_special=True).tolist()
    return int(token)


def rows_of(target: LlamaTarget, *likeliest: Any) -> Rows:
    """Return rows in which these texts are the likeliest ones, the first most of all."""
    logits = np.zeros((len(likeliest), target.vocab_size), dtype=np.float32)
    for row, texts in zip(logits, likeliest, strict=True):
        for place, text in enumerate(texts):
            row[id_of(target, text)] = 30.0 - place
    rows = Rows(target.vocab_size)
    rows.set(logits)
    return rows


def test_a_forbidden_token_gives_way_to_the_likeliest_allowed_one(target: LlamaTarget) -> None:
    sampler = target.sampler(Sampling(grammar='root ::= "ab" [0-9]', temperature=0.0), 1)
    rows = rows_of(target, ["x", "a"], ["x", "b"], ["x", "7"])
    for index, text in enumerate("ab7"):
        token = sampler.choose(rows, index)
        assert token == id_of(target, text)
        sampler.accept(token)


def test_a_complete_grammar_allows_end_tokens_only(target: LlamaTarget) -> None:
    for temperature in (0.0, 0.8):
        sampler = target.sampler(Sampling(grammar='root ::= "a"', temperature=temperature), 1)
        rows = rows_of(target, ["a"])
        assert sampler.choose(rows, 0) == id_of(target, "a")
        sampler.accept(id_of(target, "a"))
        end = sampler.choose(rows, 0)
        assert target.is_end(end)
        sampler.accept(end)


def test_a_complete_grammar_without_end_tokens_leaves_nothing(target: LlamaTarget) -> None:
    sampler = target.sampler(Sampling(grammar='root ::= "a"', ignore_eos=True), 1)
    rows = rows_of(target, ["a"], ["a"], ["a"])
    out = np.empty(3, dtype=np.int32)
    draft = np.full(2, id_of(target, "a"), dtype=np.int32)
    assert verify(rows, 0, draft, sampler, out) == -2
    assert out[0] == id_of(target, "a")


def test_a_token_that_the_grammar_forbids_ends_the_sampler_not_the_process(
    target: LlamaTarget,
) -> None:
    for forbidden in ("x", "</s>"):
        sampler = target.sampler(Sampling(grammar='root ::= "ab"'), 1)
        rows = rows_of(target, ["a"])
        assert sampler.choose(rows, 0) == id_of(target, "a")
        assert sampler.problem == ""
        sampler.accept(id_of(target, forbidden))
        assert sampler.choose(rows, 0) == -1
        assert "does not allow" in sampler.problem
        sampler.accept(id_of(target, "b"))
        assert sampler.choose(rows, 0) == -1


def test_a_grammar_that_takes_ever_longer_is_given_up(target: LlamaTarget) -> None:
    text = 'root ::= "a" root x | "a" root y | "b"\nx ::= "c"\ny ::= "c"'  # two ways per token
    sampler, count = target.sampler(Sampling(grammar=text), 1), 0
    rows = rows_of(target, ["a"])
    started = time.process_time()
    while sampler.choose(rows, 0) >= 0 and count < 60:
        sampler.accept(id_of(target, "a"))
        count += 1
    assert "too ambiguous" in sampler.problem
    assert 5 < count < 40
    assert time.process_time() - started < 20.0


def test_a_grammar_may_ask_for_a_token(target: LlamaTarget) -> None:
    sampler = target.sampler(Sampling(grammar="root ::= <|im_start|> [a-z]"), 1)
    rows = rows_of(target, ["x"])
    token = sampler.choose(rows, 0)
    assert token == id_of(target, "<|im_start|>")
    sampler.accept(token)
    assert sampler.choose(rows, 0) == id_of(target, "x")


def test_the_grammar_does_not_see_the_prompt(target: LlamaTarget) -> None:
    sampling = Sampling(grammar='root ::= "ab"', repeat_penalty=100.0, temperature=0.0)
    sampler = target.sampler(sampling, 1)
    sampler.accept_prompt(target.model.tokenize("xyz"))
    assert sampler.choose(rows_of(target, ["x", "a"]), 0) == id_of(target, "a")


def test_the_prompt_counts_for_penalties(target: LlamaTarget) -> None:
    sampling = Sampling(presence_penalty=2.5, temperature=0.0, repeat_last_n=2)
    rows = rows_of(target, ["a", "b", "c", "d"])
    for prompt, expected in (("", "a"), ("a", "b"), ("ba", "c"), ("abc", "a"), ("xab", "c")):
        sampler = target.sampler(sampling, 1)
        sampler.accept_prompt(target.model.tokenize(prompt, add_special=False))
        assert sampler.choose(rows, 0) == id_of(target, expected)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("settings", [{}, {"top_k": 0}, {"mirostat": 2}, {"mirostat": 1}], ids=str)
def test_a_row_without_any_number_gives_no_token(
    target: LlamaTarget, value: float, settings: dict[str, Any]
) -> None:
    rows = Rows(target.vocab_size)
    rows.set(np.full((1, target.vocab_size), value, dtype=np.float32))
    assert target.sampler(Sampling(**settings), 1).choose(rows, 0) == -1


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 0}, {"mirostat": 1}, {"typical_p": 0.5}], ids=str
)
def test_a_row_with_some_numbers_gives_one_of_them(
    target: LlamaTarget, settings: dict[str, Any]
) -> None:
    logits = np.full((1, target.vocab_size), np.nan, dtype=np.float32)
    logits[0, [7, 9]] = 1.0, np.inf
    rows = Rows(target.vocab_size)
    rows.set(logits)
    sampler = target.sampler(Sampling(**settings), 1)
    assert {sampler.choose(rows, 0) for _ in range(20)} <= {7, 9}


@pytest.mark.parametrize(
    "settings",
    [{}, {"repeat_penalty": 1.3}, {"mirostat": 2}, {"grammar": "root ::= [a-z ]+"}, {"top_k": 0}],
    ids=str,
)
def test_drafts_do_not_change_the_tokens(target: LlamaTarget, settings: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (40, target.vocab_size)).astype(np.float32)
    rows = Rows(target.vocab_size)
    rows.set(logits)
    out = np.empty(64, dtype=np.int32)
    alone, expected = target.sampler(Sampling(**settings), 9), []
    for index in range(40):
        assert verify(rows, index, [], alone, out) == 1
        expected.append(int(out[0]))
    drafted, ids = target.sampler(Sampling(**settings), 9), []
    while len(ids) < 40:
        start, right = len(ids), len(ids) % 5
        draft = expected[start : start + right] + [0] * min(3, 39 - start - right)
        count = verify(rows, start, draft[: 39 - start], drafted, out)
        assert count >= 1
        ids += out[:count].tolist()
    assert ids[:40] == expected


def test_equal_seeds_give_equal_tokens_and_the_last_seed_is_no_random_one(
    target: LlamaTarget,
) -> None:
    logits = np.random.default_rng(1).normal(0, 1, (30, target.vocab_size)).astype(np.float32)
    rows = Rows(target.vocab_size)
    rows.set(logits)

    def tokens(seed: int) -> list[int]:
        sampler = target.sampler(Sampling(temperature=2.0), seed)
        return [sampler.choose(rows, i) for i in range(30)]

    assert tokens(1) == tokens(1) != tokens(2)
    assert tokens(0xFFFFFFFF) == tokens(0xFFFFFFFF) == tokens(MAX_SEED)


def test_only_plain_greedy_requests_need_no_chain(target: LlamaTarget) -> None:
    assert isinstance(target.sampler(Sampling(temperature=0.0), 1), GreedySampler)
    for settings in ({}, {"logit_bias": {1: 1.0}}, {"ignore_eos": True}, {"repeat_penalty": 2.0}):
        sampler = target.sampler(Sampling(**{"temperature": 0.0, "seed": 1, **settings}), 1)
        assert isinstance(sampler, ChainSampler) == bool(settings)


def test_what_the_model_suppresses_is_never_chosen(target: LlamaTarget) -> None:
    chains = Chains(target.model, 256)
    token = id_of(target, "a")
    chains._suppressed = [token]
    rows = rows_of(target, ["a", "b"])
    for temperature in (0.0, 0.7):
        sampling = Sampling(temperature=temperature, logit_bias={token: 5.0})
        assert chains.sampler(sampling, 1).choose(rows, 0) == id_of(target, "b")


BAD_SAMPLINGS: dict[str, tuple[dict[str, Any], str]] = {
    "token": ({"logit_bias": {356: 1.0}}, r"token ids in 0\.\.355, got 356"),
    "negative token": ({"logit_bias": {-1: 1.0}}, "got -1"),
    "token of another type": ({"logit_bias": {"1": 1.0}}, "must hold token ids, got '1'"),
    "bias of another type": ({"logit_bias": {1: "x"}}, "must be a number, got 'x'"),
    "huge bias": ({"logit_bias": {1: 10**310}}, r"must be at most 1e\+09"),
    "too many biases": ({"logit_bias": dict.fromkeys(range(16385), 1.0)}, "at most 16384 tokens"),
    "nan": ({"logit_bias": {1: float("nan")}}, "must be finite or -inf, got nan"),
    "inf": ({"logit_bias": {1: float("inf")}}, "must be finite or -inf, got inf"),
    "grammar": ({"grammar": "root ::= ("}, r"expected \)"),
    "breakers": (
        {"dry_multiplier": 1.0, "dry_sequence_breakers": ("a",) * 65},
        "dry_sequence_breakers must be at most 64, got 65",
    ),
}


@pytest.mark.parametrize("name", BAD_SAMPLINGS)
def test_bad_samplings_are_refused(target: LlamaTarget, name: str) -> None:
    settings, message = BAD_SAMPLINGS[name]
    with pytest.raises(InputError, match=message):
        target.sampler(Sampling(**settings), 1)


def test_a_bias_below_single_precision_rules_a_token_out(target: LlamaTarget) -> None:
    rows = rows_of(target, ["a", "b"])
    for bias in (-(10**310), -1e300, float("-inf")):
        sampling = Sampling(temperature=0, logit_bias={id_of(target, "a"): bias})
        assert target.sampler(sampling, 1).choose(rows, 0) == id_of(target, "b")


def test_bad_arguments_are_refused(target: LlamaTarget) -> None:
    calls, candidates = target.model.library.calls, Candidates(8)
    with pytest.raises(InputError, match="vocab_size must be >= 1"):
        Candidates(0)
    for change in ({"chain_address": 0}, {"keep": -1}, {"keep": 129}, {"lookback": -1}):
        settings = {"chain_address": 1, **change}
        with pytest.raises(InputError):
            ChainSampler(calls, candidates=candidates, owner=None, **settings)
    with pytest.raises(InputError, match=r"token ids in 0\.\.7"):
        ChainSampler(calls, 1, candidates, None, keep=1, biased=[8])
    with pytest.raises(BackendError, match="no function llama_sampler_apply"):
        ChainSampler({}, 1, candidates, None)
    rules = read_grammar('root ::= "a"', lambda text: -1)
    matcher = Matcher(rules, target.model.vocabulary.grammar_tokens)
    with pytest.raises(InputError, match="a vocabulary of 356 tokens, the candidates for 8"):
        ChainSampler(calls, 1, candidates, None, matcher)
    with pytest.raises(InputError, match="got -1"):
        target.sampler(Sampling(repeat_penalty=2.0), 1).accept_prompt([-1])


def test_samplers_of_a_closed_target_choose_nothing(model: LlamaModel) -> None:
    target = LlamaTarget(model, context_size=256, threads=1)
    rows = rows_of(target, ["a"])
    samplers = [target.sampler(Sampling(grammar=text), 1) for text in ("", 'root ::= "a"')]
    assert [sampler.choose(rows, 0) for sampler in samplers] == [id_of(target, "a")] * 2
    target.close()
    for sampler in samplers:
        assert sampler.choose(rows, 0) == -1
        sampler.accept(5)
        sampler.accept_prompt([1, 2])
    with pytest.raises(StateError, match="the target is closed"):
        target.sampler(Sampling(), 1)


def test_rows_of_another_width_give_no_token(target: LlamaTarget) -> None:
    rows = Rows(5)
    rows.set(np.zeros((1, 5), dtype=np.float32))
    assert target.sampler(Sampling(), 1).choose(rows, 0) == -1


AFTER_SUB_INTERPRETER = """
import sys
import _xxsubinterpreters
import numpy as np
from ngramspec._native.engine.decode import Rows
from ngramspec._native.engine.verifier import verify
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.sampler_chain import Chains
from ngramspec.engine import Sampling
_xxsubinterpreters.destroy(_xxsubinterpreters.create())
model = LlamaModel(sys.argv[1])
vocab = model.vocab_size
forbidden = vocab - 1
logits = np.zeros((2**19 // vocab + 2, vocab), np.float32)  # so many are verified without the GIL
logits[:, forbidden] = 9.0
rows = Rows(vocab)
rows.set(logits)
sampler = Chains(model, 64).sampler(Sampling(temperature=0.0, grammar='root ::= "a"'), 1)
chosen = np.zeros(len(logits), np.int32)
draft = np.full(len(logits) - 1, forbidden, np.int32)
print(verify(rows, 0, draft, sampler, chosen), chosen[0] != forbidden)
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module has another name")
def test_a_sub_interpreter_that_existed_does_not_end_the_process(
    model_path: Callable[[str], str],
) -> None:
    command = [sys.executable, "-c", AFTER_SUB_INTERPRETER, model_path("big-vocab")]
    assert subprocess.check_output(command, text=True, timeout=120).split()[-1] == "True"
