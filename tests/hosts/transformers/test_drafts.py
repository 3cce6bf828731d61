"""Drafts and NgramSpeculator, which need neither torch nor transformers."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ngramspec import AutoPolicy, SuffixPool, create_drafter
from ngramspec.costs import CostTable
from ngramspec.errors import InputError
from ngramspec.hosts.transformers import NgramSpeculator
from ngramspec.hosts.transformers.drafts import Drafts
from ngramspec.hosts.transformers.speculator import as_lender

LOOP = np.array([1, 2, 3, 4, 5, 6] * 4, dtype=np.int32)


def begun(rows: int = 1, **changes: Any) -> tuple[Any, Drafts]:
    drafter = create_drafter("ngram-simple", slots=rows, size_n=2, size_m=8)
    settings = {"rows": rows, "longest": 8, "vocab_size": 100, "ends": (), **changes}
    drafts = Drafts(drafter, **settings)
    for row in range(rows):
        drafts.begin(row, LOOP)
        drafts.accept(row, np.array([1], np.int32), 0)
    return drafter, drafts


def propose(drafts: Drafts, rows: list[int], limit: int = 8) -> list[list[int]]:
    limits = np.full(len(rows), limit, dtype=np.int32)
    longest = drafts.propose(np.array(rows, dtype=np.int32), limits, len(rows))
    assert longest == drafts.lengths.max(initial=0)
    return [drafts.tokens[i, :n].tolist() for i, n in enumerate(drafts.lengths)]


def test_rows_draft_up_to_their_limits_and_others_nothing() -> None:
    _, drafts = begun(3)
    assert propose(drafts, [0, 2], 3) == [[2, 3, 4], [], [2, 3, 4]]
    assert propose(drafts, [1], 2) == [[], [2, 3], []]
    assert propose(drafts, [1], 0) == [[], [], []]


def test_drafts_end_behind_an_end_token_and_before_what_is_no_token() -> None:
    drafter, drafts = begun(ends=(4,))
    assert propose(drafts, [0]) == [[2, 3, 4]]
    drafts.accept(0, np.array([2, 3, 4, 9], np.int32), 3)
    stats = drafter.stats()["ngram-simple"]
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 3)
    _, drafts = begun(vocab_size=5)
    assert propose(drafts, [0]) == [[2, 3, 4]]
    _, drafts = begun(vocab_size=2)
    assert propose(drafts, [0]) == [[]]


def forked(**changes: Any) -> tuple[Any, list[list[int]]]:
    """A tree after 1 2: 3, then 4 and 5; the drafter, and the paths to all of its tokens."""
    drafter = create_drafter("suffix")
    drafts = Drafts(drafter, 1, 16, **{"vocab_size": 100, "ends": (), "tree_width": 4, **changes})
    drafts.begin(0, np.array([1, 2, 3, 4, 9, 6, 1, 2, 3, 5, 8, 7, 1], np.int32))
    drafts.accept(0, np.array([2], np.int32), 0)
    propose(drafts, [0], 16)
    paths: list[list[int]] = []
    for token, parent in zip(
        drafts.tokens[0], drafts.parents[0, : drafts.lengths[0]], strict=False
    ):
        paths.append([*(paths[parent] if parent >= 0 else []), int(token)])
    # The drafter's own tree is as long: a path of it is accepted, and no other.
    drafter.accept(0, np.array([*paths[-1], 50], np.int32), len(paths[-1]))
    assert drafter.stats()["suffix"].num_draft_tokens == len(paths)
    return drafts, paths


def test_trees_come_with_their_parents_and_end_where_nothing_useful_follows() -> None:
    _, paths = forked()
    assert [3, 4, 9] in paths
    assert [3, 5, 8] in paths
    whole = len(paths)
    _, paths = forked(ends=(3,))
    assert paths == [[3]]
    # Behind one end only: the other branch goes on, and what has come before it stays.
    _, paths = forked(ends=(8,))
    assert [3, 4, 9] in paths
    assert paths[-1][-2:-1] != [8]
    assert len(paths) <= whole
    _, paths = forked(ends=(4, 5))
    assert sorted(paths) == [[3], [3, 4], [3, 5]]
    drafts, paths = forked(vocab_size=9)
    assert all(9 not in path for path in paths)
    assert 0 < drafts.lengths[0] < whole


def test_a_drafter_that_fails_is_logged_once_and_drafts_no_more(caplog: Any) -> None:
    drafter, drafts = begun(2)
    drafter.end(1)
    with caplog.at_level(logging.WARNING):
        assert propose(drafts, [0, 1]) == [[], []]
        drafts.accept(0, np.array([7], np.int32), 0)
        assert propose(drafts, [0]) == [[], []]
        drafts.observe(3, 0.1)
        drafts.end_all()
        drafts.end_all()
    assert [record.message for record in caplog.records] == [
        "the drafter failed: no drafts until generate() ends"
    ]


def test_a_row_ends_once_and_all_that_are_left_at_the_end() -> None:
    drafter, drafts = begun(2)
    drafts.end(0)
    drafts.end(0)
    drafts.end_all()
    for slot in (0, 1):
        with pytest.raises(RuntimeError, match="no request has begun"):
            drafter.propose(slot, 1)


def test_the_policy_learns_what_passes_cost() -> None:
    policy = AutoPolicy()
    drafts = Drafts(create_drafter("suffix", policy=policy), 1, 8, 100, ())
    for tokens in (1, 2, 4, 8) * 20:
        drafts.observe(tokens, 0.5)
    assert policy.costs().cost(1) == pytest.approx(0.5, rel=0.2)


def test_a_policy_pays_for_all_rows_that_a_draft_pads() -> None:
    """A place costs a token of every row that is computed, also of those without a draft."""
    lengths = []
    for computed in (1, 8):
        policy = AutoPolicy(costs=CostTable(((1, 1.0), (2, 1.2))))
        drafter = create_drafter("suffix", slots=2, policy=policy)
        drafts = Drafts(drafter, 2, 8, 100, ())
        drafts.begin(0, LOOP)
        drafts.accept(0, np.array([1], np.int32), 0)
        lengths.append(drafts.propose(np.array([0], np.int32), np.array([8], np.int32), computed))
    assert lengths[0] > 0 == lengths[1]


def test_a_policy_is_told_what_drafts_pad_once_they_are_cut() -> None:
    table = CostTable(((1, 1.0), (2, 1.3)))
    policy, reference = AutoPolicy(fixed=3, costs=table), AutoPolicy(costs=table)
    drafter = create_drafter("suffix", slots=2, policy=policy, share=False)
    drafts = Drafts(drafter, 2, 8, 100, ends=(3,))
    for row, (prompt, first) in enumerate(((LOOP, 1), (np.arange(40, 64, dtype=np.int32), 64))):
        drafts.begin(row, prompt)
        drafts.accept(row, np.array([first], np.int32), 0)
    rows = np.arange(2, dtype=np.int32)
    assert drafts.propose(rows, np.full(2, 8, np.int32), 4) == 2  # the third is behind an end
    drafts.accept(0, np.array([2, 3, 9], np.int32), 2)
    drafts.accept(1, np.array([70], np.int32), 0)
    drafts.propose(rows, np.zeros(2, np.int32), 4)  # the pass before has ended
    reference.step(4, 12)  # four rows of a newest token and two places
    assert policy.rate == reference.rate


def say(speculator: NgramSpeculator, prompt: list[int], text: list[int]) -> list[int]:
    """Run one row through a lent drafter and return its first draft."""
    with speculator.lend(1) as drafter:
        drafter.begin(0, prompt)
        drafter.accept(0, text[:1], 0)
        draft = drafter.propose(0, 8).tolist()
        drafter.accept(0, text[1:], 0)
        drafter.end(0)
    return draft


def test_the_next_call_drafts_from_the_text_of_the_first() -> None:
    speculator = NgramSpeculator("suffix", policy="fixed")
    first, again = list(range(50, 60)), list(range(10, 30))
    assert say(speculator, first, again) == []
    assert say(speculator, [3, 4, *first[-2:]], again) == again[1:9]
    assert speculator.stats()["suffix"].begin_calls == 2
    # Also for a batch, whose drafter is another one, and next to a call that still runs.
    with speculator.lend(3) as other:
        assert say(speculator, first, again)[:2] == again[1:3]
        other.begin(2, first)
        other.accept(2, again[:1], 0)
        assert other.propose(2, 2).tolist() == again[1:3]
    assert speculator.stats()["suffix"].begin_calls == 4


def test_a_larger_drafter_takes_the_place_and_the_policy_of_a_smaller_one() -> None:
    speculator = NgramSpeculator("ngram-mod", n_match=3, capacity=1 << 12)
    policy = speculator.policy
    with speculator.lend(4) as drafter:
        assert drafter.slots == 4
        assert drafter.policy is policy
        with speculator.lend(1) as beside:
            assert beside is not drafter
            assert beside.policy is not policy
    with speculator.lend(2) as drafter:
        assert drafter.slots == 4


def test_parameters_and_policies_are_those_of_the_drafters() -> None:
    pool, policy = SuffixPool(4096), AutoPolicy(fixed=4)
    speculator = NgramSpeculator("ngram-cache,suffix", params={"suffix": {"pool": pool}})
    with speculator.lend(1) as drafter:
        assert set(drafter.sources) == {"ngram-cache", "suffix"}
    say(speculator, [1, 2, 3], [4, 5, 6, 7, 8, 9])
    assert pool.num_tokens > 0
    assert NgramSpeculator("suffix", policy=policy).policy is policy
    assert NgramSpeculator("suffix", policy="fixed").policy is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NgramSpeculator("sufix"), "unknown drafter"),
        (lambda: NgramSpeculator("suffix", sizen=3), "unknown parameter 'sizen' for suffix"),
        (lambda: NgramSpeculator("suffix", params={"suffix": {"x": 1}}), "unknown parameter 'x'"),
        (lambda: NgramSpeculator("suffix", params={"ngram-mod": {}}), "which is not in suffix"),
        (lambda: NgramSpeculator("suffix", capacity=5), "capacity must be"),
        (lambda: NgramSpeculator("suffix", max_draft=0), "max_draft must be an integer in 1..1024"),
        (lambda: NgramSpeculator("suffix", policy="best"), 'policy must be "auto", "fixed" or an'),
        (lambda: as_lender(5), "must be drafter names, a Drafter or an NgramSpeculator, got int"),
        (lambda: as_lender(None), "got NoneType"),
        (lambda: as_lender("sufix"), "unknown drafter"),
        (
            lambda: as_lender(create_drafter("suffix", slots=2)).lend(3).__enter__(),
            "a batch of 3 rows needs a Drafter of 3 slots, got one of 2",
        ),
    ],
)
def test_what_is_not_as_documented_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_package_is_exported_lazily_and_imports_no_torch() -> None:
    code = (
        "import sys, ngramspec; a = 'ngramspec.hosts.transformers' in sys.modules;"
        "ngramspec.ngramspec_generate, ngramspec.NgramSpeculator;"
        "print(a, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
