"""Threads that observe and draft on one small pool of successors: no entry is ever half of two."""

from __future__ import annotations

import numpy as np

from helpers.together import run_together
from ngramspec import SuccessorPool, create_drafter

THREADS = 3
ROUNDS = 300
TOKENS = 40  # contexts of one token, which fight for 64 entries with their pairs
VOCABULARY = 4000
LENGTHS = np.array([2, 5, 8])  # successors in a row, by thread


def successors(token: int, thread: int) -> tuple[list[int], np.ndarray]:
    """What a thread says of a token: ids and probabilities that belong to both, and to no other."""
    n = int(LENGTHS[thread])
    p = np.linspace(0.2, 0.1, n)
    return [1000 * (thread + 1) + 10 * token + i for i in range(n)], p / p.sum()


def logits(token: int, thread: int) -> np.ndarray:
    ids, p = successors(token, thread)
    row = np.full((1, VOCABULARY), -np.inf, np.float32)
    row[0, ids] = np.log(p)
    return row


def check_found(token: int, ids: np.ndarray, p: np.ndarray) -> None:
    if len(ids):
        expected_ids, likely = successors(token, int(ids[0]) // 1000 - 1)
        assert ids.tolist() == expected_ids
        assert np.abs(p - likely).max() < 1e-3


def test_what_is_read_was_observed_as_a_whole() -> None:
    pool = SuccessorPool(64)

    def work(thread: int) -> None:
        drafter = create_drafter("recycle", pool=pool, max_draft=4)
        rows = [logits(token, thread) for token in range(TOKENS)]
        chance = np.random.default_rng(thread)
        for _ in range(ROUNDS):
            text = chance.integers(0, TOKENS, 12, dtype=np.int32)
            drafter.begin(0, text)
            for at in range(len(text)):
                drafter.observe_logits(0, rows[text[at]], at)  # lets other threads run
            for token in text.tolist():
                check_found(token, *pool.successors([token]))
                check_found(token, *pool.successors([int(text[0]), token]))
            tokens, parents, _ = drafter.propose_tree(0, 4)
            drafter.accept(0, tokens[:1], len(tokens[:1]))
            roots = [
                one for one, up in zip(tokens.tolist(), parents.tolist(), strict=True) if up < 0
            ]
            assert all((one // 10) % 100 == text[-1] for one in roots)
            if thread == 0 and chance.random() < 0.02:
                pool.clear()

    run_together(work, THREADS)
    assert pool.check() == ""
    assert pool.num_evicted > 0
    rows = pool.entries()
    other = SuccessorPool(64)
    other.insert(rows)
    assert sorted(map(tuple, other.entries())) == sorted(map(tuple, rows))
