"""Single calls under pytest-benchmark: python -m pytest benchmarks/micro

Compare two runs with --benchmark-save and --benchmark-compare; machines are noisy, so compare
medians and only on one machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngramspec import (
    DRAFTER_NAMES,
    HashPool,
    NgramCache,
    create_drafter,
    embedded_model,
    read_lookup_cache,
    write_lookup_cache,
)
from ngramspec._native.policy.arbiter import Arbiter, FreeDraft, Terms
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import PROFILES
from ngramspec.engine.sources.spelling import MOST_CONTEXT, Speller
from ngramspec.engine.sources.translation import Translator
from ngramspec.llamacpp.model import LlamaModel

TEXT = np.resize(np.random.default_rng(0).integers(0, 50_000, 9973, dtype=np.int32), 32768)


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_begin_of_32k_tokens(benchmark: Any, name: str) -> None:
    drafter = create_drafter(name)
    other = TEXT[::-1].copy()
    benchmark.pedantic(
        drafter.begin, args=(0, TEXT), setup=lambda: drafter.begin(0, other), rounds=20
    )


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_propose_8_tokens(benchmark: Any, name: str) -> None:
    drafter = create_drafter(name)
    drafter.begin(0, TEXT)
    ids, logs = TEXT[1:, None].copy(), np.full((len(TEXT) - 1, 1), -0.001, np.float32)
    drafter.observe_top(0, ids, logs, first=0)  # so that recycle has a draft too
    assert len(benchmark(drafter.propose, 0, 8)) == 8


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_accept_4_tokens(benchmark: Any, name: str) -> None:
    drafter = create_drafter(name)
    drafter.begin(0, TEXT)
    benchmark(drafter.accept, 0, TEXT[:4].copy(), 0)


ROW = np.random.default_rng(1).normal(scale=3, size=(1, 150_000)).astype(np.float32)


@pytest.mark.parametrize("how", ["observe_logits", "largest alone", "argpartition"])
def test_8_likeliest_of_150_000_logits(benchmark: Any, how: str) -> None:
    """Beside a plain pass over the row, and numpy's selection without any probabilities."""
    drafter = create_drafter("recycle")
    drafter.begin(0, TEXT[:9])
    if how == "observe_logits":
        benchmark(drafter.observe_logits, 0, ROW)
    elif how == "largest alone":
        benchmark(ROW.max)
    else:
        benchmark(np.argpartition, ROW[0], -8)


@pytest.mark.parametrize("length", [1, 8, 64])
def test_choice_of_a_draft_length(benchmark: Any, length: int) -> None:
    policy = AutoPolicy(costs=PROFILES["cpu"])
    chain = np.full(length, 0.9, dtype=np.float32)
    assert benchmark(policy.choose, 0, "a", chain, 64) <= length


@pytest.mark.parametrize("slots", [8, 64, 256])
def test_choice_over_slots(benchmark: Any, slots: int) -> None:
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 17, slots)
    chains = [("a", -np.sort(-rng.random(n).astype(np.float32)), 16) for n in lengths]
    assert len(benchmark(policy.choose_many, chains, slots * 17)) == slots


@pytest.mark.parametrize("length", [0, 8, 64])
def test_whether_to_ask_a_source_that_takes_time(benchmark: Any, length: int) -> None:
    arbiter = Arbiter(AutoPolicy(costs=PROFILES["h100-8b"]))
    arbiter.price("model", 0.1, 0.2)
    claims = np.full(length, 0.95, dtype=np.float32)
    free = FreeDraft("suffix", claims, np.zeros(length // 2, np.int32))
    benchmark(arbiter.ask, 0, "model", free, Terms(64, 8))


def tree_of(length: int) -> tuple[np.ndarray, np.ndarray]:
    """A chain with a branch of four tokens at every eighth token."""
    parents = np.arange(-1, length - 1, dtype=np.int32)
    claims = np.full(length, 0.95, dtype=np.float32)
    for start in range(8, length, 12):
        parents[start] = start - 5
        claims[start] = 0.05
    return claims, parents


@pytest.mark.parametrize("length", [8, 64])
def test_whether_to_ask_for_a_branch_beside_a_tree(benchmark: Any, length: int) -> None:
    arbiter = Arbiter(AutoPolicy(costs=PROFILES["h100-8b"]))
    arbiter.price("model", 0.1, 0.2)
    claims, parents = tree_of(length)
    free = FreeDraft("suffix", claims, np.zeros(length, np.int32), parents)
    benchmark(arbiter.ask, 0, "model", free, Terms(128, 8, branches=32))


@pytest.mark.parametrize("length", [8, 64])
def test_what_to_send_of_a_tree_and_of_8_tokens_of_a_model(benchmark: Any, length: int) -> None:
    arbiter = Arbiter(AutoPolicy(costs=PROFILES["h100-8b"]))
    arbiter.price("model", 0.1, 0.2)
    claims, parents = tree_of(length)
    tokens = np.arange(length, dtype=np.int32)
    draft, claimed = np.arange(100, 108, dtype=np.int32), np.full(8, 0.9, np.float32)
    free = FreeDraft("suffix", claims, tokens, parents)
    benchmark(arbiter.mix, "model", claimed, draft, False, free, Terms(128, branches=32))


@pytest.mark.parametrize("size", [1_000, 16_000])
@pytest.mark.parametrize("step", ["there", "back"])
def test_translation_of_a_step_of_4_tokens(benchmark: Any, size: int, step: str) -> None:
    """What a draft model of another vocabulary takes beside its passes, by the context."""
    with LlamaModel(embedded_model(), vocab_only=True) as model:
        speller = Speller(model.vocabulary)
        both = Translator(speller, speller, [("<|im_end|>", "</s>")])
        text = Path(argparse.__file__).read_text()
        ids = model.tokenize(text)[-size - 4 :]  # the same end
        assert ids.size == size + 4
        translation, tail = both.translation(), ids[size:]
        translation.append(both.spell(ids[:size], True))
        if step == "there":
            benchmark(lambda: translation.preview(both.spell(tail, False)))
        else:
            context, claims = ids[size - MOST_CONTEXT : size], [0.9] * 4
            assert benchmark(both.back, context, b"", tail.tolist(), claims)[0] == tail.tolist()


def test_pool_insert(benchmark: Any) -> None:
    pool = HashPool()
    benchmark(pool.insert, TEXT[:24].copy(), 7)


def test_load_of_a_lookup_cache(benchmark: Any, tmp_path: Path) -> None:
    cache = NgramCache()
    cache.update(TEXT)
    write_lookup_cache(cache, tmp_path / "cache.bin")
    assert len(benchmark(read_lookup_cache, tmp_path / "cache.bin")) == len(cache)
