"""At temperature 1 the distribution of tokens with drafts is that of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine import AutoPolicy, DraftSource, Engine, Request, Sampling
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

SAMPLES = 10_000
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.02}
SLOTS = 32
VOCABULARY = 356


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


def drawn(target: LlamaTarget, prompt: Any) -> Any:
    """Return as many texts of three tokens, sampled with drafts."""
    engine = Engine(target, Popular(5), slots=SLOTS, policy=AutoPolicy(fixed=4))
    asked = [
        Request(
            prompt_ids=prompt,
            max_tokens=3,
            sampling=Sampling(seed=9_000_000 + i, ignore_eos=True, **SAMPLING),
        )
        for i in range(SAMPLES)
    ]
    texts = np.array([answer.token_ids for answer in engine.generate(asked)])
    assert engine.stats().num_accepted_tokens > SAMPLES / 20
    return texts


def chances_of(target: LlamaTarget, prompt: Any) -> dict[tuple[int, ...], float]:
    """Return how likely each text of three tokens is, none an end, by the model's own logits."""
    ends = list(target.model.vocabulary.end_tokens)
    batch, rows = Batch(target.max_batch), Rows(target.vocab_size)

    def next_tokens(text: tuple[int, ...]) -> Iterator[tuple[int, float]]:
        target.truncate(0, 0)
        batch.clear()
        batch.add(0, 0, np.array([*prompt, *text], np.int32), None, True)
        target.decode(batch, rows)
        logits = np.array(rows.copy(0), np.float64)
        logits[ends] = -np.inf
        weights = np.exp(logits - logits.max())
        (likely,) = np.nonzero(weights >= SAMPLING["min_p"])
        shares = weights[likely] / weights[likely].sum()
        yield from zip(likely.tolist(), shares.tolist(), strict=True)

    chances = {(): 1.0}
    for _ in range(3):
        chances = {
            (*text, token): chance * own
            for text, chance in chances.items()
            for token, own in next_tokens(text)
        }
    target.truncate(0, 0)
    return chances


@pytest.fixture(scope="module")
def texts_and_chances(model_path: Callable[[str], str]) -> tuple[Any, Any]:
    with (
        LlamaModel(model_path("peaked")) as model,
        LlamaTarget(model, slots=SLOTS, context_size=256, threads=1) as target,
    ):
        prompt = model.tokenize("abcab")
        return drawn(target, prompt), chances_of(target, prompt)


def chi_square(counts: Any, expected: Any, least: float = 20.0) -> tuple[float, int]:
    """Return the statistic of counted categories, rare ones joined, and its freedom."""
    often = expected >= least
    table = [np.append(each[often], each[~often].sum()) for each in (counts, expected)]
    return float(((table[0] - table[1]) ** 2 / table[1]).sum()), int(often.sum())


def critical(freedom: int, z: float = 3.09) -> float:
    """Return the value that chi-square exceeds once in a thousand times (Wilson and Hilferty)."""
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + z * math.sqrt(part)) ** 3


@pytest.mark.parametrize("places", [(1,), (2,), (1, 2)])
def test_the_second_and_third_token_have_the_models_distribution_with_drafts(
    texts_and_chances: Any, places: tuple[int, ...]
) -> None:
    texts, chances = texts_and_chances
    shape = (VOCABULARY,) * len(places)
    counts, expected = np.zeros(shape), np.zeros(shape)
    np.add.at(counts, tuple(texts[:, place] for place in places), 1)
    for text, chance in chances.items():
        expected[tuple(text[place] for place in places)] += SAMPLES * chance
    statistic, freedom = chi_square(counts, expected)
    assert freedom >= 3
    assert statistic < critical(freedom)
    # A bias of a twenty-fifth of all texts would be noticed.
    often, other = np.argsort(-expected, axis=None)[:2]
    expected.flat[[often, other]] += np.array([1, -1]) * SAMPLES / 25
    assert expected.min() >= 0
    assert chi_square(counts, expected)[0] > critical(freedom)
