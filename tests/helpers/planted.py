"""Requests on which a known drafter with a known size is the best."""

from __future__ import annotations

import numpy as np

from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.player import Tokens
from ngramspec.lab.tune.candidates import DEFAULT, Candidate

COPIES, COPIED = 3, 300
SIZES = [{"size_n": n, "size_m": m} for n in (4, 3, 8) for m in (64, 300, 600)]
PLANTED = "ngram-simple:size_n=3,size_m=300 fixed"  # for costs as those of h100-8b


def planted(count: int, seed: int = 0) -> tuple[RecordedRequest, ...]:
    """Requests that copy 303 tokens in a row, then say something new.

    The default drafts 64 of them at most, so that one draft of the right length is ahead of it.
    """
    chance = np.random.default_rng(seed)
    return tuple(_request(chance) for _ in range(count))


def noise(count: int, seed: int = 0) -> tuple[RecordedRequest, ...]:
    """Requests in which no drafter can be right."""
    chance = np.random.default_rng((seed, 1))  # other tokens than those of planted requests
    return tuple(RecordedRequest(_random(chance, 40), _random(chance, 40)) for _ in range(count))


def trace(*requests: RecordedRequest, name: str = "planted") -> Trace:
    return Trace(name, requests)


def few_candidates() -> list[Candidate]:
    """The default, the planted one, and some that are worse there."""
    simple = [Candidate("ngram-simple", sizes, False) for sizes in SIZES]
    return [DEFAULT, *simple, Candidate("ngram-cache", {}, True)]


def _random(chance: np.random.Generator, length: int) -> Tokens:
    return chance.integers(100, 60_000, length, dtype=np.int32)


def _request(chance: np.random.Generator) -> RecordedRequest:
    texts = [_random(chance, COPIED + 3) for _ in range(COPIES)]
    prompt = [part for text in texts for part in (text, _random(chance, 2))]
    output = [part for text in texts for part in (_random(chance, 2), text)]
    return RecordedRequest(np.concatenate(prompt), np.concatenate(output))
