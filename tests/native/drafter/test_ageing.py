"""Texts beyond max_history: what is kept, that nothing is learnt twice, and what a turn costs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec import Drafter, HashPool, NgramCache, SuffixPool, create_drafter

BOUND = 1024
ONCE = pytest.approx(0.6)  # what ngram-mod claims for what its pool saw once
LENGTH = 6000
TEXT = np.arange(LENGTH, dtype=np.int32)  # nothing in it comes again


def accept(drafter: Drafter, tokens: np.ndarray, step: int = 10) -> None:
    for at in range(0, len(tokens), step):
        drafter.accept(0, tokens[at : at + step], 0)


def generate(drafter: Drafter) -> None:
    """One long request."""
    drafter.begin(0, TEXT[:10])
    accept(drafter, TEXT[10:])


def converse(drafter: Drafter) -> None:
    """The same text in turns: each prompt is all that was said, and a little more."""
    for turn in range(0, LENGTH, 250):
        drafter.begin(0, TEXT[: turn + 100])
        accept(drafter, TEXT[turn + 100 : turn + 250])
        drafter.end(0)
    assert drafter.length(0) == LENGTH


USES = pytest.mark.parametrize("use", [generate, converse])


@USES
def test_a_pool_of_ngrams_sees_each_token_once(use: Any) -> None:
    pool = HashPool(capacity=1 << 20)
    use(create_drafter("ngram-mod", n_match=3, n_min=1, pool=pool, max_history=BOUND))
    reader = create_drafter("ngram-mod", n_match=3, n_min=1, pool=pool)
    for at in range(50, LENGTH - 10, 5):
        reader.begin(0, TEXT[at : at + 3])
        assert reader.propose(0, 5).tolist() == TEXT[at + 3 : at + 8].tolist()
        assert reader.confidence(0).tolist() == [ONCE] * 5, at


@USES
def test_a_suffix_pool_is_given_each_token_once(use: Any) -> None:
    pool = SuffixPool(1 << 16)
    drafter = create_drafter("suffix", pool=pool, max_history=BOUND)
    use(drafter)
    if use is generate:
        drafter.end(0)
    assert (pool.num_tokens, pool.num_known) == (LENGTH, 0)


@USES
def test_a_dynamic_cache_counts_each_token_once(use: Any) -> None:
    caches = []
    for bound in (BOUND, 1 << 20):
        caches.append(NgramCache())
        use(create_drafter("ngram-cache", dynamic=caches[-1], max_history=bound))
    aged, whole = caches
    assert aged.num_updates == whole.num_updates > 0
    assert [aged.followers([token]) for token in TEXT] == [
        whole.followers([token]) for token in TEXT
    ]
    assert max(max(aged.followers([token]).values(), default=0) for token in TEXT) == 1


def test_a_turn_beyond_the_bound_costs_its_new_tokens() -> None:
    bound, step = 1 << 16, 40
    rng = np.random.default_rng(5)
    text = rng.integers(0, 5000, bound + 3000, dtype=np.int32)
    spec = {"spec": "ngram-simple,ngram-map-k4v,ngram-mod,ngram-cache,suffix", "size_n": 3}
    drafter = create_drafter(**spec, max_history=bound)

    def seconds(slot_of: Drafter, length: int) -> float:
        start = time.thread_time()
        slot_of.begin(0, text[:length])
        return time.thread_time() - start

    drafter.begin(0, text[: bound - 100])
    accept(drafter, text[bound - 100 : bound + 100])  # ages once
    turns = []
    for length in range(bound + 200, bound + 3000, 100):
        turns.append(seconds(drafter, length))
        accept(drafter, text[length : length + step])
    anew = min(seconds(create_drafter(**spec, max_history=bound), len(text)) for _ in range(3))
    assert sorted(turns)[-2] < anew / 10
    assert drafter.check() == ""


def test_a_long_prompt_leaves_room_for_what_is_generated() -> None:
    """Else the first tokens after it would make the drafter drop half of it and index the rest."""
    drafter = create_drafter("ngram-simple", size_n=2, max_history=BOUND)
    drafter.begin(0, TEXT[:2000])
    assert drafter.history(0).tolist() == TEXT[2000 - 768 : 2000].tolist()
    accept(drafter, TEXT[2000:2250])
    assert drafter.history(0).tolist() == TEXT[2000 - 768 : 2250].tolist()


def test_a_prompt_far_back_in_the_conversation_is_held_whole() -> None:
    drafter = create_drafter("ngram-simple", size_n=2, max_history=BOUND)
    generate(drafter)
    for length in (LENGTH - 300, 2000, 700, 5):
        drafter.begin(0, TEXT[:length])
        held = len(drafter.history(0))
        assert held >= min(length, BOUND // 2)
        assert drafter.history(0).tolist() == TEXT[length - held : length].tolist()


@pytest.mark.parametrize("call", ["accept", "follow", "follow_batch"])
def test_what_fits_is_kept_however_much_of_it_comes_at_once(call: str) -> None:
    drafter = create_drafter("ngram-simple,suffix", max_history=BOUND)
    drafter.begin(0, TEXT[:300])
    if call == "accept":
        drafter.accept(0, TEXT[300:BOUND], 0)
    elif call == "follow":
        assert drafter.follow(0, TEXT[:BOUND]) == 0
    else:
        accepted = np.full(1, -9, np.int32)
        lengths = np.array([BOUND], np.int32)
        drafter.follow_batch(np.zeros(1, np.int32), TEXT[None, :BOUND].copy(), lengths, accepted)
        assert accepted.tolist() == [0]
    assert drafter.history(0).tolist() == TEXT[:BOUND].tolist()
    assert drafter.check() == ""
    drafter.accept(0, TEXT[:1], 0)
    assert drafter.history(0).tolist() == [*TEXT[BOUND // 2 : BOUND], 0]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "accept", "edit", "truncate"]),
        st.integers(0, 900),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k4v", "ngram-cache"])
@given(steps=STEPS)
def test_drafts_are_those_of_the_tokens_that_are_held(
    name: str, steps: list[tuple[str, int, int]]
) -> None:
    """Whatever was dropped, kept and indexed anew: as if the rest were all there ever was."""
    params = {} if name == "ngram-cache" else {"size_n": 2}
    drafter = create_drafter(name, max_history=BOUND, **params)
    text = np.zeros(0, np.int32)
    drafter.begin(0, text)
    for kind, length, seed in steps:
        new = np.random.default_rng(seed).integers(0, 6, length, dtype=np.int32)
        if kind == "accept":
            text = np.concatenate([text, new])
            length = len(drafter.history(0)) + len(new)
            drafter.accept(0, new, 0)
            assert len(drafter.history(0)) == length or length > BOUND
        elif kind == "truncate":
            text = text[: len(text) - min(length, len(text))]
            drafter.truncate(0, len(text))
        else:
            shared = len(text) if kind == "turn" else max(len(text) - 30 * length, 0)
            text = np.concatenate([text[:shared], new])
            drafter.begin(0, text)
            fits = len(text) if len(text) <= BOUND else 3 * BOUND // 4
            assert 2 * len(drafter.history(0)) >= fits  # dropped tokens may stay dropped
        held = drafter.history(0)
        assert drafter.check() == ""
        assert drafter.length(0) == len(text)
        assert len(held) <= BOUND
        assert held.tolist() == text[len(text) - len(held) :].tolist()
        fresh = create_drafter(name, **params)
        fresh.begin(0, held)
        assert drafter.propose(0, 20).tolist() == fresh.propose(0, 20).tolist()


def test_one_large_accept_takes_no_room_for_what_is_dropped() -> None:
    drafter = create_drafter(
        "ngram-simple,ngram-map-k,suffix", size_n=2, capacity=4096, max_history=BOUND
    )
    drafter.begin(0, TEXT[:BOUND])
    drafter.accept(0, TEXT[:10], 0)
    before = drafter.nbytes
    drafter.accept(0, np.resize(TEXT, 1_000_000), 0)
    assert drafter.nbytes <= 2 * before
    assert drafter.length(0) == BOUND + 10 + 1_000_000
    assert drafter.check() == ""


def test_another_text_begins_anew_where_all_that_was_held_has_aged_away() -> None:
    drafter = create_drafter("ngram-simple", max_history=BOUND)
    generate(drafter)
    drafter.truncate(0, 10)  # these were dropped long ago
    assert drafter.follow(0, TEXT[:10]) == 0
    assert drafter.follow(0, TEXT[100:150]) == -1
    assert drafter.history(0).tolist() == TEXT[100:150].tolist()
    drafter.begin(0, TEXT[:10])
    accept(drafter, TEXT[10:])
    drafter.truncate(0, 10)
    table, lengths = TEXT[None, 100:150].copy(), np.array([50], np.int32)
    accepted = np.zeros(1, np.int32)
    drafter.follow_batch(np.zeros(1, np.int32), table, lengths, accepted)
    assert accepted.tolist() == [-1]
