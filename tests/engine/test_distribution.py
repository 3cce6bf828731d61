"""At temperature 1 the distribution of tokens is the same with and without drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ngramspec.engine import (
    AutoPolicy,
    DraftSource,
    Engine,
    Request,
    Sampling,
    Speculation,
)
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

SAMPLES = 20_000
SAMPLING = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0}
SLOTS = 32


class Popular(DraftSource):
    """Drafts what was emitted in the same place before, wrong or right: pairs seen earlier."""

    name = "popular"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._seen: list[list[int]] = [[3, 4]]
        self._now: dict[int, list[int]] = {}

    def begin(self, slot: int, token_ids: Any) -> None:
        self._now[slot] = []

    def draft(self, slot: int, limit: int) -> Any:
        guess = self._seen[int(self._rng.integers(len(self._seen)))]
        return np.array(guess[:limit], dtype=np.int32)

    def accept(self, slot: int, token_ids: Any, num_accepted: int) -> None:
        self._now[slot].extend(int(token) for token in token_ids)

    def end(self, slot: int) -> None:
        tokens = self._now.pop(slot)
        if len(tokens) >= 3:
            self._seen = [*self._seen[-30:], tokens[1:3]]


@pytest.fixture(scope="module")
def sample(model_path: Callable[[str], str]) -> Iterator[Callable[[Any, int], Any]]:
    """Return a function that samples many texts of three tokens from one prompt."""
    with (
        LlamaModel(model_path("peaked")) as model,
        LlamaTarget(model, slots=SLOTS, context_size=256, threads=1) as target,
    ):
        prompt = model.tokenize("abcab")

        def texts(drafter: Any, first_seed: int) -> Any:
            engine = Engine(target, drafter, slots=SLOTS, policy=AutoPolicy(fixed=4))
            asked = [
                Request(
                    prompt_ids=prompt,
                    max_tokens=3,
                    sampling=Sampling(seed=first_seed + i, ignore_eos=True, **SAMPLING),
                    speculation=Speculation(enabled=drafter is not None),
                )
                for i in range(SAMPLES)
            ]
            answers = engine.generate(asked)
            return np.array([m.token_ids for m in answers]), engine.stats().num_accepted_tokens

        yield texts


@pytest.fixture(scope="module")
def plain(sample: Any) -> Any:
    return sample(None, 1_000_000)[0]


def chi_square(first: Any, second: Any, least: int = 20) -> tuple[float, int]:
    """Return the statistic of two samples of categories, rare ones joined, and its freedom."""
    size = int(max(first.max(), second.max())) + 1
    table = np.array([np.bincount(first, minlength=size), np.bincount(second, minlength=size)])
    often = table.sum(axis=0) >= 2 * least
    rare = table[:, ~often].sum(axis=1, keepdims=True)
    table = np.hstack([table[:, often], rare]) if rare.sum() >= least else table[:, often]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    return float(((table - expected) ** 2 / expected).sum()), table.shape[1] - 1


def critical(freedom: int, z: float = 3.09) -> float:
    """Return the value that chi-square exceeds once in a thousand times (Wilson and Hilferty)."""
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + z * math.sqrt(part)) ** 3


def test_the_second_and_third_token_have_the_same_distribution_with_drafts(
    sample: Any, plain: Any
) -> None:
    drafted, accepted = sample(Popular(5), 9_000_000)
    assert accepted > SAMPLES / 20
    pairs = [(plain[:, i], drafted[:, i]) for i in (1, 2)]
    pairs.append((plain[:, 1] * 512 + plain[:, 2], drafted[:, 1] * 512 + drafted[:, 2]))
    for first, second in pairs:
        statistic, freedom = chi_square(first, second)
        assert freedom >= 3
        assert statistic < critical(freedom)


def test_the_chi_square_test_notices_a_small_bias(plain: Any) -> None:
    second = plain[:, 1].copy()
    values, counts = np.unique(second, return_counts=True)
    often, other = values[np.argsort(-counts)[:2]]
    changed = np.flatnonzero(second == often)[: SAMPLES // 25]
    biased = second.copy()
    biased[changed] = other
    statistic, freedom = chi_square(second, biased)
    assert statistic > critical(freedom)
