"""Samplers made by many threads at once share what is dear to make, and nothing else."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ngramspec._native.engine.decode import Rows
from ngramspec._native.grammar.rules import Rules
from ngramspec.engine import Sampling
from ngramspec.llamacpp import LlamaModel, LlamaTarget, sampler_chain
from ngramspec.llamacpp.sampler_chain import MOST, Chains, Grammars, Recent
from ngramspec.models import embedded_model
from ngramspec.text.structured.guidance import schema_grammar

JSON = 'root ::= "{" [a-z ]* "}"'


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded_model()) as llama:
        yield llama


@pytest.fixture
def target(model: LlamaModel) -> Iterator[LlamaTarget]:
    with LlamaTarget(model, slots=1, context_size=256, threads=1) as opened:
        yield opened


def chosen(target: LlamaTarget, sampling: Sampling, rows: Rows, prompt: np.ndarray) -> list[int]:
    """Return what a fresh sampler chooses from the same rows, one after the other."""
    sampler = target.sampler(sampling, 7)
    sampler.accept_prompt(prompt)
    tokens = []
    for _ in range(6):
        tokens.append(sampler.choose(rows, 0))
        sampler.accept(tokens[-1])
    return tokens


def test_many_threads_make_samplers_with_dry_and_grammars(target: LlamaTarget) -> None:
    """More kinds than are kept, so that they are dropped while others copy them."""
    kinds = [Sampling(dry_multiplier=1.0 + i / 4, dry_base=1.5, dry_allowed_length=1,
                      grammar=JSON.replace("a-z", f"a-{chr(98 + i)}") if i % 2 else "")
             for i in range(20)]  # fmt: skip
    generator = np.random.default_rng(1)
    rows = Rows(target.vocab_size)
    rows.set(generator.normal(size=(1, target.vocab_size)).astype(np.float32))
    prompt = target.model.tokenize("one two three one two three one two")
    expected = [chosen(target, kind, rows, prompt) for kind in kinds]
    start = threading.Barrier(8)

    def work(number: int) -> None:
        order = list(range(len(kinds))) * 6
        random.Random(number // 2).shuffle(order)  # pairs of threads want the same at once
        start.wait()
        for i in order:
            target.sampler(kinds[i], 7).accept_prompt(prompt)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=120))
    assert [chosen(target, kind, rows, prompt) for kind in kinds] == expected


def test_a_grammar_is_read_once_for_all_choices(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_grammar = sampler_chain.read_grammar

    def counting(text: str, token_of: Callable[[str], int]) -> Rules:
        read.append(text)
        return read_grammar(text, token_of)

    monkeypatch.setattr(sampler_chain, "read_grammar", counting)
    for seed in range(32):
        target.sampler(Sampling(grammar=JSON), seed)
    assert read == [JSON]


def test_many_biases_cost_little_per_token(target: LlamaTarget) -> None:
    """llama.cpp looks for every biased token in every candidate unless they are in order."""
    rows = Rows(target.vocab_size)
    rows.set(np.zeros((1, target.vocab_size), np.float32))

    def seconds(count: int) -> float:
        sampler = target.sampler(Sampling(logit_bias=dict.fromkeys(range(count), -1.0)), 1)
        taken = []
        for _ in range(30):
            started = time.thread_time()
            sampler.choose(rows, 0)
            taken.append(time.thread_time() - started)
        return min(taken)

    assert seconds(target.vocab_size) < 100 * seconds(8) + 0.01


def test_what_is_kept_has_bounds() -> None:
    store: Recent[str] = Recent(3, 100)
    for i in range(6):
        assert store.get(i, lambda i=i: (f"made {i}", 10)) == f"made {i}"  # type: ignore[misc]
    assert store.get(4, lambda: ("anew", 1)) == "made 4"
    assert store.get(0, lambda: ("heavy", 1000)) == "heavy"
    assert store.get(0, lambda: ("again", 1)) == "heavy"
    assert store.clear() == ["heavy"]
    assert store.get(1, lambda: ("anew", 100)) == "anew"
    assert sorted(store.clear()) == ["anew"]


def test_kept_grammars_have_bounds_by_the_memory_that_they_take(model: LlamaModel) -> None:
    def ask(schema: Any) -> None:
        grammars.constraint(schema_grammar(schema))

    grammars = Grammars(model)
    for i in range(20):
        ask({"properties": {f"{name}{i}": {"type": "string"} for name in "abcdefgh"}})
    assert len(grammars._recent.clear()) == MOST
    for i in range(8):  # 20 MB each, from 6 KB of text
        steps = range(1990 + i, 2038 + i)
        ask({"properties": {f"p{n}": {"type": "integer", "multipleOf": n} for n in steps}})
    assert 1 <= len(grammars._recent.clear()) <= 4
    grammars.close()


def test_closing_frees_what_is_kept(model: LlamaModel) -> None:
    chains = Chains(model, 256)
    for i in range(3):
        chains.sampler(Sampling(dry_multiplier=1.0 + i, grammar=JSON), 1)
    chains.close()
    assert chains._dry.clear() == []
    assert chains._grammars._recent.clear() == []
