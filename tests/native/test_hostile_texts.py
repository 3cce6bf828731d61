"""Texts written to make drafters slow: they cost no more than others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from ngramspec import NgramCache, create_drafter

MULTIPLIER = 6364136223846793005  # of the rolling hash, which is llama.cpp's
FOLD = 0x9E3779B97F4A7C15  # a known factor in place of the one that each process makes


def least_seconds(run: Callable[[], Any], times: int = 5) -> float:
    least = float("inf")
    for _ in range(times):
        started = time.process_time()
        run()
        least = min(least, time.process_time() - started)
    return least


def crowded(length: int, size: int) -> np.ndarray:
    """Return a text whose n-grams of `size` tokens have small hashes if the factor is FOLD."""
    with np.errstate(over="ignore"):
        choices = np.arange(1, 2001, dtype=np.uint64)
        factor, power = np.uint64(MULTIPLIER), np.uint64(1)
        for _ in range(size):
            power *= factor
        text: list[int] = []
        rolling = np.uint64(0)
        for place in range(length):
            leaving = np.uint64(text[place - size] if place >= size else 0)
            hashes = rolling * factor + choices - leaving * power
            folded = ((hashes ^ (hashes >> np.uint64(32))) * np.uint64(FOLD)) >> np.uint64(32)
            best = int(folded.argmin())
            text.append(int(choices[best]))
            rolling = hashes[best]
    return int32(text)


@pytest.mark.parametrize("spec", ["ngram-simple", "ngram-map-k"])
def test_hashes_cannot_be_made_to_collide(spec: str) -> None:
    drafter = create_drafter(spec, size_n=12)
    usual = int32(np.random.default_rng(1).integers(1, 2001, 24_000))
    hostile = crowded(24_000, 12)

    def begin(text: np.ndarray) -> None:
        drafter.begin(0, [])  # nothing is shared with the text before
        drafter.begin(0, text)

    base = least_seconds(lambda: begin(usual))
    assert least_seconds(lambda: begin(hostile)) < 8 * base


def test_a_choice_among_thousands_walks_the_shorter_list() -> None:
    text: list[int] = []
    for token in range(10, 6010):
        text += [1, 2, token]
    text += [1, 2, 9] * 6010
    seconds = {}
    for followers in (60, 70):
        static = NgramCache(ngram_min=2, ngram_max=2)
        for token in range(10, 10 + followers):
            static.update(int32([1, 2, token]))
        drafter = create_drafter("ngram-cache", ngram_min=2, ngram_max=2, static=static)
        drafter.begin(0, int32([*text, 1, 2]))
        assert drafter.propose(0, 1).tolist() == [9]
        propose = [drafter.propose] * 200
        seconds[followers] = least_seconds(lambda calls=propose: [call(0, 1) for call in calls])
    assert seconds[70] < 8 * seconds[60]
