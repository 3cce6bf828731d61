"""In the exact setting texts are equal with any drafts, at any concurrency: all 100 of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.workload import Garbage, Oracle, requests
from helpers.exact_settings import find_once
from ngramspec.engine import AutoPolicy, Engine, Generation, Speculation
from ngramspec.llamacpp.exact import open_exact
from ngramspec.llamacpp.model import LlamaModel

NUM_PROMPTS = 100
CONTEXT = 512
SHORT = {
    "ngram-simple": {"size_n": 3, "size_m": 20},
    "ngram-map-k": {"size_n": 3, "size_m": 12},
    "ngram-map-k4v": {"size_n": 3, "size_m": 12},
    "ngram-mod": {"n_match": 4, "n_min": 1, "n_max": 24},
}
# drafter, slots: each serves a share of the prompts
RUNS = [
    ("ngram-simple", 1),
    ("ngram-map-k", 3),
    ("ngram-map-k4v", 2),
    ("ngram-mod", 4),
    ("ngram-cache", 8),
    ("ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache", 6),
    ("garbage", 8),
    ("oracle", 7),
    ("suffix", 5),
    ("suffix,recycle", 3),
]
Plain = dict[str, tuple[str, list[int], str | None]]


def outcome(answer: Generation) -> tuple[str, list[int], str | None]:
    return answer.text, answer.token_ids, answer.finish_reason


@pytest.fixture(scope="module")
def exactness(model: LlamaModel) -> Any:
    return find_once(model, 1, 8)


@pytest.fixture(scope="module")
def plain(model: LlamaModel, exactness: Any) -> Plain:
    """Return the texts of plain decoding: one request after the other, no drafts."""
    asked = requests(model, range(NUM_PROMPTS), Speculation(enabled=False))
    with open_exact(model, exactness, 1, CONTEXT) as target:
        engine = Engine(target, None, slots=1, exact=True)
        return {answer.request.id: outcome(answer) for answer in engine.generate(asked)}


def drafter_of(name: str, model: LlamaModel, plain: Plain) -> Any:
    if name == "garbage":
        return Garbage(model.vocab_size)
    if name == "oracle":
        asked = requests(model, range(NUM_PROMPTS), Speculation())
        return Oracle({r.prompt_ids.tobytes(): plain[r.id][1] for r in asked})
    return name


@pytest.mark.parametrize("run", range(len(RUNS)), ids=[f"{n}-{s}" for n, s in RUNS])
def test_texts_are_equal_with_any_drafts_and_any_neighbours(
    run: int, model: LlamaModel, exactness: Any, plain: Plain
) -> None:
    name, slots = RUNS[run]
    numbers = range(run, NUM_PROMPTS, len(RUNS))
    rng = random.Random(run)
    drafter = drafter_of(name, model, plain)
    named = isinstance(drafter, str)
    params = {key: SHORT[key] for key in name.split(",") if key in SHORT} if named else None
    with open_exact(model, exactness, slots, CONTEXT) as target:
        policy = AutoPolicy(fixed=30) if run % 2 else None
        engine = Engine(target, drafter, slots=slots, params=params, policy=policy, exact=True)
        finished = run_with_arrivals(engine, requests(model, numbers, Speculation()), rng)
        drafted = engine.stats().num_draft_tokens
    wrong = [one.request.id for one in finished if outcome(one) != plain[one.request.id]]
    assert wrong == []
    assert len(finished) == len(numbers)
    assert drafted > 0


def run_with_arrivals(engine: Engine, asked: list[Any], rng: random.Random) -> list[Generation]:
    """Submit at random moments, some twice of which the first is cancelled on the way."""
    finished, waiting, doomed = [], list(asked), []
    while waiting or engine.busy:
        if waiting and (rng.random() < 0.3 or not engine.busy):
            request = waiting.pop(0)
            if rng.random() < 0.3:
                doomed.append((engine.submit(request), rng.randrange(12)))
            finished.append(engine.submit(request))
        engine.step()
        doomed = [(answer, left - 1) for answer, left in doomed]
        for answer, left in doomed:
            if left < 0:
                answer.cancel()
    return finished
