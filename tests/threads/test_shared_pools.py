"""Threads that read and write one pool or cache: what they are told was really said by someone.

Every text is a run start, start + 1, ..., so whatever is known of a token is the one after it: a
draft goes on like that, whoever wrote meanwhile and whatever made room. Its first token follows the
history, but where suffix expects a text to go on after a change: that may be another text by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.machines import SETTINGS
from helpers.together import run_together
from ngramspec import Drafter, HashPool, NgramCache, SuffixPool, create_drafter

THREADS = 3
SLOTS = 4
LIMIT = 16
MOST = 10_000  # tokens are below it
FEW = settings(SETTINGS, max_examples=max(5, SETTINGS.max_examples // 4))


@st.composite
def texts(draw: st.DrawFn, longest: int) -> list[tuple[int, int]]:
    """Runs to write, as start and length; many of them share parts."""
    runs = st.tuples(st.integers(0, 3 * longest), st.integers(40, longest))
    return draw(st.lists(runs, min_size=4, max_size=16))


def run(start: int, length: int) -> np.ndarray:
    return np.arange(start, start + length, dtype=np.int32)


def write(drafter: Drafter, slot: int, start: int, length: int, as_prompt: bool) -> None:
    """Let a request say a text, by calls that let other threads run meanwhile."""
    if as_prompt:
        drafter.begin(slot, run(start, length))
        drafter.end(slot)
        return
    drafter.begin(slot, run(start, 20))
    table, accepted = run(start, length)[None, :], np.empty(1, np.int32)
    for end in [*range(21, length, 37), length]:
        drafter.follow_batch(np.array([slot], np.int32), table, np.array([end], np.int32), accepted)
        read(drafter, [slot])
    drafter.end(slot)


def read(drafter: Drafter, slots: list[int]) -> int:
    """Draft for slots that hold runs; return how many tokens came."""
    out, lens = np.empty((len(slots), LIMIT), np.int32), np.empty(len(slots), np.int32)
    drafter.propose_batch(np.array(slots, np.int32), LIMIT, out, lens)
    for slot, draft, length in zip(slots, out, lens.tolist(), strict=True):
        first = int(drafter.history(slot)[-1]) + 1
        if drafter.sources == ("suffix",) and length:
            first = int(draft[0])
        assert 0 <= first <= MOST - length
        assert draft[:length].tolist() == run(first, length).tolist()
    return int(lens.sum())


def exercise(make: Callable[[], Drafter], spans: list[tuple[int, int]], rounds: int = 4) -> int:
    """Let threads write and read, each in its own order; return how many tokens were drafted."""
    drafted = [0] * THREADS

    def work(number: int) -> None:
        drafter = make()
        rng = np.random.default_rng(number)
        for _ in range(rounds):
            for i in rng.permutation(len(spans)).tolist():
                start, length = spans[i]
                write(drafter, 0, start, length, as_prompt=bool(rng.integers(0, 2)))
                for slot in range(1, SLOTS):
                    start, length = spans[int(rng.integers(0, len(spans)))]
                    drafter.begin(slot, run(start + int(rng.integers(0, length - 30)), 24))
                drafted[number] += read(drafter, list(range(1, SLOTS)))
        assert drafter.check() == ""

    run_together(work, THREADS)
    return sum(drafted)


@given(spans=texts(2500), prompts=st.booleans())
@SETTINGS
def test_a_suffix_pool_gives_back_only_texts_that_were_written(
    spans: list[tuple[int, int]], prompts: bool
) -> None:
    pool = SuffixPool(4096)  # 19 blocks: readers often find theirs taken for another text
    given_params: dict[str, Any] = {"slots": SLOTS, "pool": pool, "pool_prompts": prompts}
    assert exercise(lambda: create_drafter("suffix", **given_params), spans) > 0
    assert pool.check() == ""
    assert 0 < pool.num_tokens <= pool.capacity


@given(spans=texts(400), max_ngrams=st.sampled_from([64, 2000, 1 << 20]))
@FEW
def test_a_dynamic_cache_gives_back_only_followers_that_were_written(
    spans: list[tuple[int, int]], max_ngrams: int
) -> None:
    dynamic = NgramCache(max_ngrams=max_ngrams)
    exercise(lambda: create_drafter("ngram-cache", slots=SLOTS, dynamic=dynamic), spans, 2)
    assert dynamic.check() == ""
    records = dynamic.records()
    at = 0
    while at < len(records):  # 4 tokens, number of followers, pairs: a token and its count
        size = int((records[at : at + 4] >= 0).sum())
        newest, num = int(records[at + size - 1]), int(records[at + 4])
        assert num == 1
        assert int(records[at + 5]) == newest + 1
        at += 5 + 2 * num
    assert 0 < len(dynamic) <= max_ngrams


@pytest.mark.parametrize("capacity", [1024, 1 << 16])
def test_a_hash_pool_gives_back_only_tokens_that_were_written(capacity: int) -> None:
    pool = HashPool(capacity=capacity)
    spans = [(400 * i, 350) for i in range(12)]
    written = set(np.concatenate([run(start, length) for start, length in spans]).tolist())
    outside: list[int] = []

    def work(number: int) -> None:
        drafter = create_drafter("ngram-mod", slots=1, pool=pool, n_match=4, n_min=1, n_max=LIMIT)
        rng = np.random.default_rng(number)
        for i in rng.integers(0, len(spans), 60).tolist():
            start, length = spans[i]
            drafter.replay(run(start, length // 2), run(start + length // 2, length - length // 2))
            draft = drafter.propose(0, LIMIT).tolist()
            outside.extend(set(draft) - written)
        assert drafter.check() == ""

    run_together(work, THREADS)
    assert not outside
