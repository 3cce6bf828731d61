"""propose_tree: what any drafter gives, what a tree counts, and what a policy learns from one."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from helpers.logits import teach
from ngramspec import DRAFTER_NAMES, AutoPolicy, create_drafter
from ngramspec._native.drafter.drafter import Drafter
from ngramspec.costs import CostTable
from ngramspec.errors import InputError, StateError

OPTIONS = {
    "ngram-mod": {"n_match": 3, "n_min": 1},
    "ngram-cache": {"n_draft": 16},
    "suffix": {},
    "recycle": {},
}
LOOP = np.resize(np.arange(9, dtype=np.int32), 100)
# After 1 2 comes 3, after that 4 or 5; the tree must have both.
FORK = [1, 2, 3, 4, 9, 6, 1, 2, 3, 5, 8, 7, 1, 2]


def begun(name: str, **options: object) -> Drafter:
    drafter = create_drafter(
        name, slots=2, params={name: OPTIONS.get(name, {"size_n": 3})}, **options
    )
    drafter.begin(0, LOOP)
    teach(drafter)
    return drafter


def forked() -> tuple[Drafter, list[int], list[int]]:
    """A suffix drafter with a pending tree, its tokens and parents."""
    drafter = create_drafter("suffix")
    drafter.begin(0, FORK)
    tokens, parents, _ = drafter.propose_tree(0, 16)
    return drafter, tokens.tolist(), parents.tolist()


def path_to(tokens: list[int], parents: list[int], path: list[int]) -> bool:
    at = -1
    for token in path:
        children = [i for i, parent in enumerate(parents) if parent == at and tokens[i] == token]
        if not children:
            return False
        (at,) = children
    return True


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_every_drafter_has_a_tree_of_new_arrays(name: str) -> None:
    drafter = begun(name)
    tokens, parents, claims = drafter.propose_tree(0, 8)
    assert (tokens.dtype, parents.dtype, claims.dtype) == (np.int32, np.int32, np.float32)
    assert tokens.shape == parents.shape == claims.shape == (8,)
    assert all(part.flags.owndata and part.flags.writeable for part in (tokens, parents, claims))
    assert claims.tolist() == drafter.confidence(0).tolist()
    assert drafter.propose(0, 8).tolist() == LOOP[1:9].tolist()
    for few in (0, 1, 3):
        assert [len(part) for part in drafter.propose_tree(0, few)] == [few] * 3
    drafter.begin(1, [])
    assert [len(part) for part in drafter.propose_tree(1, 8)] == [0] * 3


def test_both_ways_of_a_fork_are_in_the_tree() -> None:
    _, tokens, parents = forked()
    assert path_to(tokens, parents, [3, 4, 9])
    assert path_to(tokens, parents, [3, 5, 8])


def few_branches(tokens: list[int], parents: list[int], most: int) -> tuple[list[int], list[int]]:
    """Keep tokens, in their order, while what is kept has at most `most` leaves: obvious, slow."""
    chosen: list[int] = []
    for i, parent in enumerate(parents):
        if parent < 0 or parent in chosen:
            tried = [*chosen, i]
            leaves = [one for one in tried if not any(parents[other] == one for other in tried)]
            chosen = tried if len(leaves) <= most else chosen
    places = {old: new for new, old in enumerate(chosen)} | {-1: -1}
    return [tokens[i] for i in chosen], [places[parents[i]] for i in chosen]


@pytest.mark.parametrize("policy", [None, AutoPolicy(costs=CostTable(((1, 1.0), (64, 1.001))))])
def test_a_tree_has_no_more_branches_than_asked_for(policy: AutoPolicy | None) -> None:
    rng = np.random.default_rng(5)
    drafter, seen = create_drafter("suffix", slots=1, policy=policy), set[int]()
    for _ in range(60):
        drafter.begin(0, rng.integers(0, 4, 60).astype(np.int32))
        tokens, parents, _ = (part.tolist() for part in drafter.propose_tree(0, 24, 8))
        for most in (1, 2, 3, 30):
            pruned = [part.tolist() for part in drafter.propose_tree(0, 24, 8, most)[:2]]
            leaves = len(pruned[0]) - len(set(pruned[1]) - {-1})
            assert leaves <= most
            seen.add(leaves)
            if policy is None:
                assert tuple(pruned) == few_branches(tokens, parents, most)
            assert drafter.check() == ""
    assert {1, 2, 3} <= seen


@pytest.mark.parametrize("most", [1, 2, 30])
def test_what_was_offered_is_the_tree_with_the_branches_that_were_asked_for(most: int) -> None:
    drafter, _, _ = forked()
    _, parents, claims = drafter.propose_tree(0, 16, 8, most)
    offered = drafter.offered_parents(0)
    chain = parents.tolist() == list(range(-1, len(parents) - 1))
    assert chain == (most == 1) == (offered is None)
    assert offered is None or offered.tolist() == parents.tolist()
    assert drafter.offered(0).tolist() == claims.tolist()


@pytest.mark.parametrize("path", [[], [3], [3, 4, 9], [3, 5, 8]])
def test_any_path_can_be_accepted_and_counts_as_accepted(path: list[int]) -> None:
    drafter, tokens, _ = forked()
    drafter.accept(0, [*path, 7], len(path))
    stats = drafter.stats()["suffix"]
    assert (stats.num_drafts, stats.num_draft_tokens) == (1, len(tokens))
    assert (stats.accept_calls, stats.num_accepted_tokens) == (1, len(path))
    assert stats.accepted_per_position == (1,) * len(path)
    assert drafter.history(0).tolist() == [*FORK, *path, 7]
    assert drafter.confidence(0).tolist() == []
    assert drafter.check() == ""


@pytest.mark.parametrize("path", [[4], [3, 4, 8], [3, 5, 9], [3, 3]])
def test_what_is_no_path_from_the_root_is_refused(path: list[int]) -> None:
    drafter, tokens, _ = forked()
    with pytest.raises(InputError, match=r"num_accepted|pending draft"):
        drafter.accept(0, path, len(path))
    assert drafter.history(0).tolist() == FORK
    assert len(drafter.confidence(0)) == len(tokens)
    drafter.accept(0, [3, 5, 8], 3)


def test_follow_finds_the_path() -> None:
    drafter, _, _ = forked()
    assert drafter.follow(0, [*FORK, 3, 5, 8, 7]) == 3
    assert drafter.stats()["suffix"].num_accepted_tokens == 3


def test_a_shortened_tree_is_its_first_tokens() -> None:
    drafter, tokens, parents = forked()
    behind = parents[4]
    drafter.shorten(0, 4)
    assert len(drafter.confidence(0)) == 4
    few = drafter.propose_tree(0, 4)
    assert [part.tolist() for part in few[:2]] == [tokens[:4], parents[:4]]
    path, at = [tokens[4]], behind
    while at >= 0:
        path, at = [tokens[at], *path], parents[at]
    with pytest.raises(InputError, match=r"num_accepted|pending draft"):
        drafter.accept(0, path, len(path))
    drafter.accept(0, path, 0)
    assert drafter.stats()["suffix"].num_draft_tokens == 4


def test_a_fork_taken_often_comes_first() -> None:
    """What was learnt along a path that was not the likeliest moves the claims."""
    drafter = create_drafter("suffix", share=False)
    drafter.begin(0, FORK)
    for _ in range(12):
        for token in (3, 5, 8, 7, 1, 2):
            tokens, parents, _ = drafter.propose_tree(0, 16)
            right = path_to(tokens.tolist(), parents.tolist(), [token])
            drafter.accept(0, [token], int(right))
    tokens, parents, claims = drafter.propose_tree(0, 16)
    assert path_to(tokens.tolist(), parents.tolist(), [3, 5, 8])
    assert tokens[:3].tolist() == [3, 5, 8]
    assert claims[:3].min() > 0.9


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_a_policy_corrects_the_claims_of_drafters_that_do_not_learn_them(name: str) -> None:
    policy = AutoPolicy(costs=CostTable(((1, 1.0), (2, 1.001))))
    drafter = begun(name, policy=policy)
    drafter.propose_tree(0, 16)
    claims, rate = drafter.confidence(0), policy.rate
    for _ in range(3):
        drafter.accept(0, [77], 0)
        drafter.begin(0, LOOP)
        drafter.propose_tree(0, 16)
    corrected = policy.calibrated(name, claims)[0] < claims[0]
    assert corrected == (name not in ("suffix", "recycle"))
    assert policy.rate < rate


@pytest.mark.parametrize("rise", [0.001, 0.1, 0.9])
def test_a_batch_of_one_slot_sends_the_tree_of_the_slot(rise: float) -> None:
    rng = np.random.default_rng(5)
    text = rng.choice(4, 600, p=[0.5, 0.3, 0.15, 0.05]).astype(np.int32)
    costs = CostTable(((1, 1.0), (2, 1.0 + rise)))
    single, batch = (create_drafter("suffix", policy=AutoPolicy(costs=costs)) for _ in range(2))
    out, parents = np.zeros((1, 24), np.int32), np.zeros((1, 24), np.int32)
    lens, at, branches = np.zeros(1, np.int32), 300, 0
    for drafter in (single, batch):
        drafter.begin(0, text[:at])
    while at < len(text) - 25:
        tokens, above, _ = single.propose_tree(0, 24, 4)
        batch.propose_batch([0], 24, out, lens, parents, 4)
        assert out[0, : lens[0]].tolist() == tokens.tolist()
        assert parents[0, : lens[0]].tolist() == above.tolist()
        branches += int((above != np.arange(-1, len(above) - 1)).any())
        path, node = [], -1
        while True:
            after = [i for i in np.flatnonzero(above == node) if tokens[i] == text[at + len(path)]]
            if not after:
                break
            node = int(after[0])
            path.append(node)
        for drafter in (single, batch):
            drafter.accept(0, text[at : at + len(path) + 1], len(path))
        at += len(path) + 1
    assert (branches > 10) == (rise < 0.9)


def test_slots_of_a_pass_branch_where_that_pays_for_all() -> None:
    def sent(rise: float) -> tuple[list[int], list[bool]]:
        drafter = create_drafter(
            "suffix", slots=3, policy=AutoPolicy(costs=CostTable(((1, 1.0), (2, 1.0 + rise))))
        )
        for slot in range(3):
            drafter.begin(slot, FORK if slot < 2 else [*range(20, 28)])
        out, parents = np.zeros((3, 16), np.int32), np.zeros((3, 16), np.int32)
        lens = np.zeros(3, np.int32)
        drafter.propose_batch([0, 1, 2], 16, out, lens, parents)
        assert drafter.check() == ""
        chain = np.arange(-1, 15)
        forks = [bool((row[:n] != chain[:n]).any()) for row, n in zip(parents, lens, strict=True)]
        return lens.tolist(), forks

    cheap, forks = sent(0.001)
    assert cheap[0] == cheap[1] > 2
    assert cheap[2] == 0
    assert forks == [True, True, False]
    dear, forks = sent(0.5)
    assert max(dear) < min(cheap[:2])
    assert forks == [False] * 3


def test_bounds_and_states_are_checked_and_nothing_changes() -> None:
    drafter = begun("suffix")
    draft = drafter.propose(0, 5)
    for arguments, message in [
        ((0, -1), "max_tokens must be >= 0, got -1"),
        ((0, 8, 0), "max_width must be >= 1, got 0"),
        ((0, 8, 8, 0), "max_branches must be >= 1, got 0"),
        ((2, 8), "slot must be in 0..1, got 2"),
        ((-1, 8), "slot must be in 0..1, got -1"),
    ]:
        with pytest.raises(InputError, match=message):
            drafter.propose_tree(*arguments)
    with pytest.raises(StateError, match="propose_tree: no request has begun on slot 1"):
        drafter.propose_tree(1, 8)
    assert len(drafter.confidence(0)) == len(draft)
    drafter.accept(0, draft, len(draft))


def test_the_interpreter_is_free_while_a_tree_grows() -> None:
    """Another thread gets its turn although nobody makes this one give way."""
    drafter = begun("suffix")
    start, ran = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (start.wait(), ran.set()), daemon=True)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        start.set()
        for _ in range(20_000):
            drafter.propose_tree(0, 64)
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
    thread.join()
