"""Drafting: what the engine tells about what drafts."""

from __future__ import annotations

import pytest

from helpers.fake_target import FakeTarget
from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec._native.suffix.pool import SuffixPool
from ngramspec.costs import PROFILES, CostTable
from ngramspec.drafting import create_drafter
from ngramspec.engine import AutoPolicy, Engine
from ngramspec.engine.info import best_pass, unpaid


def test_pools_and_caches_are_counted_for_their_drafters() -> None:
    pool, cache = SuffixPool(1 << 16), NgramCache()
    params = {
        "suffix": {"pool": pool},
        "ngram-cache": {"static": cache},
        "ngram-mod": {"capacity": 1 << 12},
    }
    names = "ngram-simple,ngram-mod,ngram-cache,suffix"
    engine = Engine(FakeTarget(max_batch=65), names, slots=2, params=params)
    drafting = engine.drafting()
    assert list(drafting.drafters) == names.split(",")
    assert drafting.drafters == {
        "ngram-simple": 0, "ngram-mod": 4 << 12, "ngram-cache": cache.nbytes, "suffix": pool.nbytes,
    }  # fmt: skip
    assert drafting.slot_bytes > 0
    assert drafting.active
    assert drafting.notes == ()
    assert (drafting.rollback, drafting.state_bytes, drafting.policy) == ("cache", 0, "auto")


@pytest.mark.parametrize(
    ("policy", "name", "longest"),
    [(AutoPolicy(9), "auto", 9), (AutoPolicy(9, fixed=4), "fixed", 4),
     (AutoPolicy(7, gate=True), "gate", 7), (None, "auto", 48)],
)  # fmt: skip
def test_the_policy_bounds_the_longest_draft(policy: object, name: str, longest: int) -> None:
    drafting = Engine(FakeTarget(), "ngram-simple", policy=policy).drafting()  # type: ignore[arg-type]
    assert (drafting.policy, drafting.longest) == (name, longest)


@pytest.mark.parametrize(
    ("settings", "engine", "longest", "rollback", "note"),
    [
        ({"max_batch": 8}, {}, 7, "cache", "a batch holds 8 tokens"),
        ({"exact_batch": 5}, {"exact": True}, 4, "cache", "a batch holds 5 tokens"),
        ({"exact_batch": 1}, {"exact": True}, 0, "cache", "a batch holds a single token"),
        ({"max_rollback": 3}, {}, 3, "snapshots", "memory for more than 3 states of each slot"),
        ({"max_rollback": 0, "can_save": True}, {}, 48, "saved", None),
        ({"max_rollback": 0}, {}, 0, "none", "the model cannot take tokens back"),
    ],
)
def test_what_the_target_can_do_bounds_drafts(
    settings: dict, engine: dict, longest: int, rollback: str, note: str | None
) -> None:
    drafts = Engine(FakeTarget(**settings), "ngram-simple", **engine).drafting()
    assert (drafts.longest, drafts.rollback, drafts.active) == (longest, rollback, longest > 0)
    assert len(drafts.notes) == (note is not None)
    assert note is None or note in drafts.notes[0]


def test_an_engine_without_drafters_says_so() -> None:
    drafting = Engine(FakeTarget(), None).drafting()
    assert not drafting.active
    assert drafting.notes == ("no drafter and no draft model is named",)
    own = create_drafter("ngram-mod", slots=1)
    drafting = Engine(FakeTarget(), own).drafting()
    assert drafting.active
    assert list(drafting.drafters) == ["own"]


def test_costs_tell_what_right_drafts_can_give() -> None:
    table = CostTable(((1, 2.0), (2, 3.0), (4, 3.8), (16, 32.0), (32, 6.0), (64, 90.0)))
    assert best_pass(table, 62) == (32, 3.0)
    assert best_pass(table, 15) == (4, 1.9)
    assert best_pass(table, 0) == (1, 1.0)


def test_costs_tell_that_no_draft_pays() -> None:
    for table in PROFILES.values():
        assert unpaid(table, 62) == ""
    steep = CostTable(((1, 1.0), (2, 2.5), (64, 90.0)))
    assert unpaid(steep, 62) == (
        "the policy sends next to none: 2 tokens in a pass cost 2.5 times one"
    )
    later = CostTable(((1, 1.0), (2, 2.8), (4, 5.0), (8, 5.5)))
    assert unpaid(later, 62) == ""
    assert "4 tokens in a pass cost 5.0" in unpaid(later, 3)
    drafting = Engine(FakeTarget(), "ngram-simple", policy=AutoPolicy(16, steep)).drafting()
    assert "the policy sends next to none" in drafting.notes[0]
    assert unpaid(steep, 0) == ""
