"""Chains of drafters with a policy: recycle's draft grows from an earlier one's."""

from __future__ import annotations

from collections import Counter
from math import log

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from helpers.logits import teach
from helpers.machines import SETTINGS
from ngramspec import AutoPolicy, SuccessorPool, create_drafter
from ngramspec._native.drafter.drafter import Drafter
from ngramspec.costs import CostTable
from reference.chain import reference_drafter
from reference.recycle import RecycleSource
from reference.source import Tree, right_path

CHEAP = CostTable(((1, 1.0), (2, 1.0000001)))  # whatever may be right is worth sending
SIMPLE = {"size_n": 1, "size_m": 9}
Row = tuple[list[int], list[int]]
Nodes = dict[tuple[int, ...], float]


def chain(spec: str, **options: object) -> Drafter:
    params = {"ngram-simple": SIMPLE} if "simple" in spec else {}
    return create_drafter(spec, params=params, policy=AutoPolicy(64, CHEAP), **options)


def nodes(tokens: list[int], parents: list[int], claims: list[float]) -> Nodes:
    """Each token's path from the root, and its claim."""
    claim_of: dict[tuple[int, ...], float] = {}
    paths: list[tuple[int, ...]] = []
    for token, parent, claim in zip(tokens, parents, claims, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
        claim_of[paths[-1]] = claim
    assert len(claim_of) == len(tokens)  # siblings differ
    return claim_of


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Row, list[int], int]]:
    """For each step a row of the target's likeliest tokens, what it emits, and the tree's width.

    A width of 0 asks for a chain.
    """
    likely = st.lists(st.integers(100, 30_000), min_size=4, max_size=4)
    rows = st.tuples(st.permutations(range(4)).map(list), likely.map(lambda p: sorted(p)[::-1]))
    one = st.tuples(
        rows, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.sampled_from([0, 1, 2, 8])
    )
    return draw(st.lists(one, min_size=3, max_size=25))


class Counts:
    """What each source drafted and got right, counted by paths."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.drafted: Counter[str] = Counter()
        self.drafts: Counter[str] = Counter()
        self.right: dict[str, list[int]] = {name: [0] * 64 for name in drafter.sources}

    def add(self, tree: Tree, stem: Tree, right: list[int]) -> None:
        first, grown = self.drafter.sources
        copied = nodes(*stem, [0.0] * len(stem[0])).keys()
        paths = list(nodes(*tree, [0.0] * len(tree[0])))
        owners = [first if path in copied else grown for path in paths]
        self.drafted.update(owners)
        self.drafts.update(set(owners))
        for i in range(len(right)):
            self.right[first if tuple(right[: i + 1]) in copied else grown][i] += 1

    def check(self) -> None:
        for name, stats in self.drafter.stats().items():
            assert stats.num_draft_tokens == self.drafted[name]
            assert stats.num_drafts == stats.accept_calls == self.drafts[name]
            positions = np.trim_zeros(self.right[name], "b")
            assert stats.accepted_per_position == tuple(positions)
            assert stats.num_accepted_tokens == sum(positions)


@pytest.mark.parametrize("first", ["ngram-simple", "suffix"])
@settings(SETTINGS, max_examples=2 * SETTINGS.max_examples)
@given(text=st.lists(st.integers(0, 3), min_size=1, max_size=20), rounds=steps())
def test_what_grows_is_what_the_reference_grows(
    first: str, text: list[int], rounds: list[tuple[Row, list[int], int]]
) -> None:
    drafter = chain(f"{first},recycle")
    alone = create_drafter(first, **(SIMPLE if first == "ngram-simple" else {}))
    reference = reference_drafter("recycle")
    source = reference.slots[0].sources[0]
    assert isinstance(source, RecycleSource)
    for side in (drafter, alone, reference):
        side.begin(0, text)
    counts, grafted = Counts(drafter), 0
    for (ids, p), emitted, width in rounds:
        logs = [log(one / 65535) for one in p]
        drafter.observe_top(0, np.array([ids], np.int32), np.array([logs], np.float32), None)
        reference.observe_top(0, [ids], [logs], None)
        stem, claims = propose(alone, 64, width)
        if stem[0]:
            grown = source.graft(reference.history(0), 64, width or 1, stem, claims)
        else:
            grown = source.propose_tree(reference.history(0), 64, width or 1)
        expected = nodes(*grown, source.claims)
        tree, tree_claims = propose(drafter, 64, width)
        drafted = nodes(*tree, tree_claims)
        before = drafter.stats()["recycle"].num_draft_tokens
        right = right_path(tree, emitted)
        drafter.accept(0, emitted, right)
        own = drafter.stats()["recycle"].num_draft_tokens > before
        if own:  # some token at the end may not pay
            assert drafted.items() <= expected.items()
            assert len(drafted) >= 0.8 * len(expected)
            grafted += 1
        else:  # the other's own draft was better, or nothing grew on it
            assert drafted.items() <= nodes(*stem, claims).items() | expected.items()
        counts.add(tree, stem, emitted[:right])
        for side in (alone, reference):
            side.accept(0, emitted, 0)
        assert drafter.check() == ""
    counts.check()
    event(f"{min(grafted, 5)} drafts of recycle, of {min(len(rounds), 5)}")


def propose(drafter: Drafter, most: int, width: int) -> tuple[Tree, list[float]]:
    """A tree, or where width is 0 a chain; and what it claims."""
    if width:
        tokens, parents, claims = (one.tolist() for one in drafter.propose_tree(0, most, width))
    else:
        tokens, claims = drafter.propose(0, most).tolist(), drafter.confidence(0).tolist()
        parents = list(range(-1, len(tokens) - 1))
    return (tokens, parents), claims


def grown() -> tuple[Drafter, list[int], list[int]]:
    """A drafter with a pending tree that recycle grew on ngram-simple's draft."""
    drafter = chain("ngram-simple,recycle")
    drafter.begin(0, [1, 2, 3, 4, 5, 1])
    ids, logs = np.array([[3, 8]], np.int32), np.log(np.array([[0.6, 0.3]], np.float32))
    drafter.observe_top(0, ids, logs, first=1)  # after 2, but ngram-simple knows 3 only
    tokens, parents, _ = drafter.propose_tree(0, 30)
    return drafter, tokens.tolist(), parents.tolist()


def test_it_adds_branches_and_a_longer_end() -> None:
    drafter, tokens, parents = grown()
    paths = nodes(tokens, parents, [0.0] * len(tokens))
    assert (2, 3, 4, 5) in paths
    assert (2, 8) in paths
    drafter.accept(0, [2, 8, 9], 2)
    simple, recycle = drafter.stats().values()  # 2 is ngram-simple's, 8 grew on it
    assert (simple.num_draft_tokens, recycle.num_draft_tokens) == (9, len(tokens) - 9)
    assert (simple.num_drafts, simple.accept_calls, simple.accepted_per_position) == (1, 1, (1,))
    assert (recycle.num_drafts, recycle.accept_calls) == (1, 1)
    assert recycle.accepted_per_position == (0, 1)


def test_a_draft_counts_by_what_was_verified_of_it() -> None:
    drafter, _, _ = grown()
    drafter.reset_stats()
    drafter.shorten(0, 9)
    drafter.accept(0, [2, 9], 1)
    simple, recycle = drafter.stats().values()
    assert simple.num_draft_tokens + recycle.num_draft_tokens == 9
    for stats, right in ((simple, 1), (recycle, 0)):
        verified = int(stats.num_draft_tokens > 0)
        assert (stats.num_drafts, stats.accept_calls) == (verified, verified)
        assert stats.num_accepted_tokens == right


def test_a_chain_goes_on_where_the_other_ends() -> None:
    pool = SuccessorPool(256)
    teacher = create_drafter("recycle", pool=pool)
    teacher.begin(0, [50, *range(1, 30)])
    teach(teacher)
    params = {"ngram-simple": {"size_n": 1, "size_m": 1}, "recycle": {"pool": pool}}
    drafter = create_drafter("ngram-simple,recycle", params=params, policy=AutoPolicy(64, CHEAP))
    drafter.begin(0, [10, 11, 12, 13, 10])
    for _ in range(40):  # ngram-simple claims too much for what it drafts, and is trusted less
        drafter.propose(0, 9)
        drafter.accept(0, [15, 10], 0)
        assert drafter.check() == ""
    drafter.begin(0, [10, 11, 12, 13, 10])
    assert drafter.propose(0, 9).tolist() == list(range(11, 20))
    drafter.accept(0, [11], 1)
    assert drafter.stats()["recycle"].num_drafts > 0


def test_without_a_policy_the_first_draft_wins() -> None:
    drafter = create_drafter("ngram-simple,recycle", params={"ngram-simple": SIMPLE})
    drafter.begin(0, [1, 2, 3, 1])
    teach(drafter)
    assert drafter.propose(0, 2).tolist() == [2, 3]
    assert drafter.stats()["recycle"].propose_calls == 0


@pytest.mark.parametrize("tree", [False, True])
def test_where_it_knows_nothing_the_other_drafts_as_ever(tree: bool) -> None:
    alone, both = (
        create_drafter(spec, policy=AutoPolicy(64, CHEAP)) for spec in ("suffix", "suffix,recycle")
    )
    text = np.resize(np.random.default_rng(1).integers(0, 40, 90, np.int32), 600)
    text[::7] = 3
    for side in (alone, both):
        side.begin(0, text[:200])
    for at in range(200, 590, 3):
        drafts = [
            [part.tolist() for part in side.propose_tree(0, 20)]
            if tree
            else side.propose(0, 20).tolist()
            for side in (alone, both)
        ]
        assert drafts[0] == drafts[1]
        for side in (alone, both):
            side.accept(0, text[at : at + 3], 0)
    assert both.stats()["recycle"].num_drafts == 0


def test_a_draft_longer_than_its_own_is_cut() -> None:
    drafter = create_drafter(
        "ngram-simple,recycle",
        params={"ngram-simple": {"size_n": 2, "size_m": 500}},
        policy=AutoPolicy(1024, CHEAP),
    )
    drafter.begin(0, np.resize(np.arange(300, dtype=np.int32), 900))
    teach(drafter)
    for draft in (drafter.propose(0, 400), drafter.propose_tree(0, 400, 8)[0]):
        assert len(draft) in (64, 400)  # its own longest, or ngram-simple's
        assert draft[:64].tolist() == list(range(64))
    assert drafter.check() == ""
