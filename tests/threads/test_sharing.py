"""Pools and caches shared by threads: nothing torn, nothing stuck."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.together import run_together
from ngramspec import Drafter, HashPool, NgramCache, SuffixPool, create_drafter

THREADS = 4
ROUNDS = 30


def text(seed: int, length: int = 4000, vocabulary: int = 500) -> np.ndarray:
    """Return random tokens that repeat parts of themselves."""
    rng = np.random.default_rng(seed)
    once = rng.integers(0, vocabulary, length // 2, dtype=np.int32)
    return np.concatenate([once, once])


def test_drafters_in_threads_share_one_pool() -> None:
    pool = HashPool(capacity=1 << 14)  # small: inserts collide and age all the time
    accepted = [0] * THREADS

    def work(number: int) -> None:
        drafter = create_drafter("ngram-mod", pool=pool, n_match=4, n_min=1, n_max=16)
        for seed in range(ROUNDS):
            tokens = text(seed % 3)
            accepted[number] += drafter.replay(tokens[:500], tokens[500:]).accepted
            assert drafter.check() == ""

    run_together(work, THREADS)
    assert min(accepted) > 0
    entries = pool.entries()
    assert entries.max() < 500
    assert entries.min() >= -1
    assert pool.check() == ""  # each entry is counted once, by the thread that filled its cell


def test_a_pool_that_threads_fill_and_clear_at_once_counts_every_cell() -> None:
    pool = HashPool(capacity=1024)

    def work(number: int) -> None:
        drafter = create_drafter("ngram-mod", pool=pool, n_match=4, n_min=1, n_max=16)
        for seed in range(50):
            tokens = text(seed % 2, 20_000, 5_000)  # all insert the same at once
            drafter.begin(0, tokens)
            if number == 0 and seed % 5 == 0:
                pool.clear()

    run_together(work, THREADS)
    assert pool.check() == ""


def test_figures_of_a_pool_hold_what_its_drafters_have_not_counted_there_yet() -> None:
    """Drafters come and go, more of them than there are places to count in."""
    pool = HashPool(capacity=1 << 14, max_occupancy=0.5)
    drafters = [
        create_drafter("ngram-mod", pool=pool, n_match=4, n_min=1, n_max=16) for _ in range(24)
    ]
    rng = np.random.default_rng(3)
    for number, drafter in enumerate(drafters):
        drafter.begin(0, text(number, 60))
    for step in range(600):
        drafters[step % len(drafters)].accept(0, rng.integers(0, 500, 5, np.int32), 0)
        if step % 100 == 7:
            assert pool.check() == ""
            assert pool.stats()["num_used"] == np.count_nonzero(pool.entries() >= 0)
        if step == 300:
            pool.recount()  # what is pending is counted once
            assert pool.check() == ""
        if step == 350:
            pool.clear()
            assert pool.num_used == 0
    replaced = pool.stats()["num_replaced"]
    used = pool.num_used
    assert 0 < used <= 1 << 13
    del drafters, drafter
    assert (pool.num_used, pool.stats()["num_replaced"]) == (used, replaced)
    assert pool.check() == ""


def test_a_pool_that_drafters_fill_together_keeps_its_bound() -> None:
    pool = HashPool(capacity=4096, max_occupancy=0.25)
    drafters = [
        create_drafter("ngram-mod", pool=pool, n_match=4, n_min=1, n_max=16) for _ in range(8)
    ]
    rng = np.random.default_rng(5)
    for drafter in drafters:
        drafter.begin(0, [])
    for step in range(4000):
        drafters[step % 8].accept(0, rng.integers(0, 100_000, 3, np.int32), 0)
        assert pool.num_used <= 1024 + 1
    assert pool.num_used >= 1000
    assert pool.stats()["num_aged"] > 0


def test_drafters_in_threads_share_one_suffix_pool() -> None:
    pool = SuffixPool(capacity=1 << 14)  # small: blocks are taken from one another all the time
    accepted = [0] * THREADS

    def work(number: int) -> None:
        drafter = create_drafter("suffix", slots=2, pool=pool)
        for seed in range(ROUNDS):
            tokens = text(seed % 3)
            accepted[number] += drafter.replay(tokens[:500], tokens[500:], slot=seed % 2).accepted
            if number == 0 and seed % 5 == 0:
                pool.clear()
            assert drafter.check() == ""
            assert 0 <= pool.num_tokens <= pool.capacity

    run_together(work, THREADS)
    # A replay alone accepts some 1970; what it or another thread said before gives more.
    assert sum(accepted) > THREADS * ROUNDS * 2200
    assert pool.num_evicted > 0


def test_an_entry_that_all_threads_write_is_always_one_of_the_written_tokens() -> None:
    pool = HashPool(capacity=1024)
    key = np.array([1, 2, 3], dtype=np.int32)

    def work(number: int) -> None:
        for _ in range(2000):
            pool.insert(key, 100 + number)
            assert pool.lookup(key) in range(100, 100 + THREADS)

    run_together(work, THREADS)


@pytest.mark.parametrize("spec", ["ngram-simple,ngram-map-k4v,ngram-mod,ngram-cache", "suffix"])
def test_slots_of_one_drafter_may_be_used_from_different_threads(spec: str) -> None:
    options = {"size_n": 3, "n_match": 4, "n_min": 2} if spec != "suffix" else {"capacity": 4096}
    drafter = create_drafter(spec, slots=THREADS, **options)

    def work(number: int) -> None:
        for seed in range(5):
            tokens = text(seed, 1000)
            drive(drafter, number, tokens[:300], tokens[300:])
            assert drafter.history(number).tolist() == tokens.tolist()

    run_together(work, THREADS)
    assert drafter.check() == ""


def drive(drafter: Drafter, slot: int, prompt: np.ndarray, output: np.ndarray) -> None:
    """Replay by single calls."""
    drafter.begin(slot, prompt)
    i = 0
    while i < len(output):
        draft = drafter.propose(slot, len(output) - i)
        wrong = np.flatnonzero(draft != output[i : i + len(draft)])
        right = int(wrong[0]) if len(wrong) else len(draft)
        drafter.accept(slot, output[i : i + right + 1], right)
        i += right + 1


def test_one_drafter_serves_replay_and_single_calls_at_once() -> None:
    drafter = create_drafter("ngram-cache", slots=THREADS)
    tokens = text(1, 2000)

    def work(number: int) -> None:
        for _ in range(5):
            if number % 2:
                drafter.replay(tokens[:100], tokens[100:], slot=number)
            else:
                drive(drafter, number, tokens[:100], tokens[100:400])
            drafter.stats()

    run_together(work, THREADS)
    assert drafter.check() == ""


def test_threads_learn_into_one_dynamic_cache() -> None:
    dynamic = NgramCache(max_ngrams=20_000)

    def work(number: int) -> None:
        drafter = create_drafter("ngram-cache", dynamic=dynamic)
        for seed in range(5):
            tokens = text(10 * number + seed, 1000, 50)
            drafter.replay(tokens[:100], tokens[100:])
            dynamic.followers([1])

    run_together(work, THREADS)
    assert dynamic.check() == ""
    assert 0 < len(dynamic) <= 20_000


def test_caches_merge_into_each_other_without_a_deadlock() -> None:
    caches = [NgramCache() for _ in range(2)]
    for seed, cache in enumerate(caches):
        cache.update(text(seed, 400, 20))

    def work(number: int) -> None:
        for _ in range(10):
            mine, other = caches[number % 2], caches[(number + 1) % 2]
            mine.merge(other)
            mine.update(text(number, 200, 20))

    run_together(work, THREADS)
    assert all(cache.check() == "" for cache in caches)


def test_a_static_cache_taken_while_others_learn_holds_what_was_there() -> None:
    cache = NgramCache(2, 2)
    cache.update([1, 2, 3])
    drafters = []

    def work(number: int) -> None:
        for i in range(50):
            if number == 0:
                drafters.append(create_drafter("ngram-cache", static=cache))
            cache.update(text(i, 200, 20))

    run_together(work, THREADS)
    assert cache.check() == ""
    for drafter in drafters:
        drafter.begin(0, [1, 2])
        drafter.propose(0, 4)
    assert len(drafters) == 50
