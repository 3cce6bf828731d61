"""Known small cases of ngram-mod and its pool; written as in ../map/test_vectors.py."""

from __future__ import annotations

import random
from typing import Any

import pytest

from helpers.backends import Backend, Native, Reference

pytestmark = pytest.mark.parametrize(
    "backend", [Native(), Reference()], ids=["native", "reference"]
)

HASHES = [
    ([1], 1),
    ([1, 2], 1408815),
    ([1, 2, 3], 3845190),
    ([*range(1, 25)], 1449372),
    ([151644, 872, 198], 426442),
]


@pytest.mark.parametrize(("tokens", "index"), HASHES)
def test_an_ngram_has_the_same_cell_as_upstream(
    backend: Backend, tokens: list[int], index: int
) -> None:
    assert backend.pool().index_of(tokens) == index


def test_a_smaller_pool_takes_the_low_bits(backend: Backend) -> None:
    assert backend.pool(capacity=1024).index_of([1, 2]) == 1408815 % 1024


class TestDrafts:
    def drafter(self, backend: Backend, slots: int = 3, **params: Any) -> Any:
        return backend.drafter("ngram-mod", slots, **params)

    def test_m1_the_pool_is_followed_token_by_token(self, backend: Backend) -> None:
        pool = backend.pool()
        drafter = self.drafter(backend, pool=pool, n_match=3, n_min=2, n_max=6)
        drafter.begin(0, [*range(1, 10)])
        assert pool.num_used == 6
        drafter.begin(1, [5, 6, 7])
        assert drafter.propose(1, 64) == [8, 9]
        drafter.begin(1, [6, 7, 8])
        assert drafter.propose(1, 64) == []  # 9 alone is less than n_min
        drafter.accept(0, [50, 51, 1, 2, 3], 0)
        assert drafter.propose(0, 64) == [4, 5, 6, 7, 8, 9]

    def test_m2_every_slot_drafts_from_what_one_has_seen(self, backend: Backend) -> None:
        drafter = self.drafter(backend, n_match=3, n_min=2, n_max=6)
        drafter.begin(0, [*range(1, 10), 50, 51, 1, 2, 3])
        drafter.begin(2, [1, 2, 3])
        assert drafter.propose(2, 64) == drafter.propose(0, 64) == [4, 5, 6, 7, 8, 9]

    def test_m3_a_prompt_of_n_tokens_adds_nothing_and_of_one_more_adds_one(
        self, backend: Backend
    ) -> None:
        pool = backend.pool()
        drafter = self.drafter(backend, pool=pool)
        drafter.begin(0, [*range(24)])
        assert pool.num_used == 0
        drafter.begin(0, [*range(25)])
        assert pool.num_used == 1

    def test_m4_every_committed_token_is_pooled_at_once(self, backend: Backend) -> None:
        """Upstream's table grows only every ninth token, at lengths 109, 118, 127 and 136."""
        pool = backend.pool()
        drafter = self.drafter(backend, pool=pool)
        drafter.begin(0, [*range(100)])
        for token in range(100, 140):
            drafter.accept(0, [token], 0)
            assert pool.num_used == token + 1 - 24

    def test_m5_a_loop_is_drafted_to_n_max(self, backend: Backend) -> None:
        drafter = self.drafter(backend, n_match=2, n_min=0, n_max=8)
        drafter.begin(0, [1, 2, 3, 1, 2, 3, 1, 2])
        drafter.accept(0, [3], 0)
        assert drafter.propose(0, 64) == [1, 2, 3, 1, 2, 3, 1, 2]

    def test_m6_short_rooms_and_rejections_never_empty_the_pool(self, backend: Backend) -> None:
        """Upstream clears every slot's pool after five drafts of 64 that were cut to 9."""
        pool = backend.pool()
        drafter = self.drafter(backend, pool=pool)
        drafter.begin(0, [*range(1, 200)])
        used = pool.num_used
        for _ in range(6):
            drafter.begin(1, [*range(1, 30)])
            draft = drafter.propose(1, 9)
            assert draft == [*range(30, 39)]
            drafter.accept(1, draft, 9)
        for end in range(80, 86):
            drafter.begin(1, [*range(50, end)])
            assert len(drafter.propose(1, 64)) == 64
            drafter.accept(1, [99999], 0)
        assert pool.num_used == used
        drafter.begin(2, [*range(100, 130)])
        assert len(drafter.propose(2, 64)) == 64

    def test_m7_a_full_pool_ages_and_keeps_the_prompt_that_came(self, backend: Backend) -> None:
        """Upstream empties the whole table in begin, the prompt just added included."""
        pool = backend.pool(capacity=1024, max_occupancy=0.125)
        drafter = self.drafter(backend, pool=pool, n_match=2, n_min=1, n_max=8)
        tokens = random.Random(7).choices(range(1000), k=2000)
        drafter.begin(0, tokens)
        assert pool.num_used == 128
        assert pool.lookup(tokens[-3:-1]) == tokens[-1]

    def test_a_run_of_known_tokens_counts_towards_n_min(self, backend: Backend) -> None:
        drafter = self.drafter(backend, n_match=2, n_min=6, n_max=64)
        drafter.begin(0, [*range(1, 11)])
        drafter.begin(1, [1, 2, 3, 4, 5, 6])
        assert drafter.propose(1, 64) == []  # 7 8 9 10 alone
        drafter.accept(1, [7], 0)
        assert drafter.propose(1, 64) == []
        drafter.begin(1, [1, 2, 3, 4])
        assert drafter.propose(1, 64) == [5, 6, 7, 8, 9, 10]
        drafter.accept(1, [5, 6, 7], 3)
        assert drafter.propose(1, 2) == [8, 9]  # 3 known and 3 to come
        drafter.truncate(1, 7)
        assert drafter.propose(1, 64) == []


class TestPool:
    """Of one-token n-grams the cell is the token itself, modulo the capacity."""

    def test_the_newest_follower_wins(self, backend: Backend) -> None:
        pool = backend.pool(capacity=1024)
        for token in (5, 5, 5, 6):
            pool.insert([1, 2], token)
        assert pool.lookup([1, 2]) == 6
        assert pool.num_used == 1

    def test_another_ngram_in_the_same_cell_is_told_by_its_check(self, backend: Backend) -> None:
        pool = backend.pool(capacity=1024)
        key, other = self.colliding(pool)
        pool.insert(key, 5)
        assert (pool.lookup(key), pool.lookup(other)) == (5, -1)
        pool.insert(other, 6)
        assert (pool.lookup(key), pool.lookup(other), pool.num_used) == (-1, 6, 1)

    def test_without_check_bits_a_collision_answers(self, backend: Backend) -> None:
        """Upstream's only mode."""
        pool = backend.pool(capacity=1024, check_bits=0)
        key, other = self.colliding(pool)
        pool.insert(key, 5)
        assert pool.lookup(other) == 5

    def colliding(self, pool: Any) -> tuple[list[int], list[int]]:
        """Two n-grams of one cell, whose hashes differ in the top bits."""
        first, second = [0, 5], [3, 5 - 3 * 6364136223846793005 % 1024 + 1024]
        assert pool.index_of(first) == pool.index_of(second)
        return first, second

    def test_the_hand_spares_what_was_confirmed(self, backend: Backend) -> None:
        pool = backend.pool(capacity=1024, max_occupancy=4 / 1024)
        for token in (0, 1, 1, 2, 3):  # cells 0 to 3, cell 1 confirmed once
            pool.insert([token], 50 + token)
        pool.insert([4], 54)
        assert self.used(pool) == {1: 51, 2: 52, 3: 53, 4: 54}
        pool.insert([5], 55)
        assert self.used(pool) == {1: 51, 3: 53, 4: 54, 5: 55}
        for token in (6, 7, 8):
            pool.insert([token], 50 + token)
        assert self.used(pool) == {1: 51, 6: 56, 7: 57, 8: 58}
        pool.insert([9], 59)  # round again: cells 6, 7 and 8 are next
        assert self.used(pool) == {1: 51, 7: 57, 8: 58, 9: 59}

    def used(self, pool: Any) -> dict[int, int]:
        return {cell: token for cell, token in enumerate(pool.entries()) if token >= 0}

    def test_clear_empties_the_pool(self, backend: Backend) -> None:
        pool = backend.pool(capacity=1024)
        pool.insert([1], 2)
        pool.clear()
        assert (pool.num_used, pool.lookup([1]), set(pool.entries())) == (0, -1, {-1})

    def test_tokens_too_big_for_a_cell_are_never_drafted(self, backend: Backend) -> None:
        pool = backend.pool()
        drafter = backend.drafter("ngram-mod", pool=pool, n_match=2, n_min=1)
        drafter.begin(0, [1, 2, 4194303])
        assert pool.num_used == 0
        drafter.begin(0, [1, 2, 4194302, 1, 2])
        assert drafter.propose(0, 1) == [4194302]
