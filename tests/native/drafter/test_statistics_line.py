"""The statistics of a chain and upstream's line of text for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.backends import int32

UPSTREAM_LINE = (
    "       ngram-mod: #calls(b,g,a) =    3    512      9, "
    "#gen drafts =      9, #acc drafts =     8, "
    "#gen tokens =    540, #acc tokens =   401, #mean acc len = 45.56, "
    "#acc rate/pos = (0.889, 0.889, 0.778), dur(b,g,a) = 0.149, 0.347, 0.005 ms"
)


def source_stats(**changes: Any) -> Any:
    from ngramspec import SourceStats

    fields = {
        "name": "ngram-mod",
        "begin_calls": 3,
        "propose_calls": 512,
        "accept_calls": 9,
        "num_drafts": 9,
        "num_accepted_drafts": 8,
        "num_draft_tokens": 540,
        "num_accepted_tokens": 401,
        "accepted_per_position": (8, 8, 7),
        "begin_ns": 149_000,
        "propose_ns": 347_000,
        "accept_ns": 5_000,
    }
    return SourceStats(**{**fields, **changes})


def test_d5_the_line_reads_as_upstreams() -> None:
    assert source_stats().line().endswith(UPSTREAM_LINE)


def test_d5_without_a_verified_draft_the_line_leaves_out_mean_and_rates() -> None:
    changes = {"accept_calls": 0, "num_accepted_tokens": 0, "accepted_per_position": ()}
    line = source_stats(**changes).line()
    assert "#acc tokens =     0, dur(b,g,a) = 0.149" in line


def test_tokens_per_draft_are_those_of_passes_with_one() -> None:
    assert source_stats().tokens_per_draft == 1 + 401 / 9
    assert source_stats(accept_calls=0, num_accepted_tokens=0).tokens_per_draft == 1
    assert not hasattr(source_stats(), "mean_accepted_length")  # that counts every pass


@pytest.fixture
def drafter() -> Any:
    from ngramspec import create_drafter

    core = create_drafter("ngram-simple,ngram-mod", n_min=1)
    core.begin(0, int32([*range(100, 180), *range(100, 124)]))
    return core


def test_d3_a_cut_draft_counts_by_its_cut_length(drafter: Any) -> None:
    assert drafter.propose(0, 5).size == 5
    drafter.accept(0, int32([9]), 0)
    stats = drafter.stats()["ngram-simple"]
    assert (stats.num_drafts, stats.num_draft_tokens) == (1, 5)


def test_a_draft_that_is_never_verified_does_not_count(drafter: Any) -> None:
    for _ in range(3):
        drafter.propose(0, 5)
    drafter.end(0)
    stats = drafter.stats()["ngram-simple"]
    assert (stats.propose_calls, stats.num_drafts, stats.num_draft_tokens) == (3, 0, 0)


def test_d1_the_drafts_owner_counts_what_was_accepted(drafter: Any) -> None:
    draft = drafter.propose(0, 5)
    drafter.accept(0, np.append(draft[:2], 9).astype(np.int32), 2)
    simple, mod = drafter.stats()["ngram-simple"], drafter.stats()["ngram-mod"]
    assert (simple.accept_calls, simple.num_accepted_drafts) == (1, 1)
    assert simple.num_accepted_tokens == 2
    assert tuple(simple.accepted_per_position) == (1, 1)
    assert (mod.num_drafts, mod.accept_calls, mod.num_accepted_tokens) == (0, 0, 0)


def test_a_token_without_a_draft_is_no_accept_call(drafter: Any) -> None:
    """Upstream tells its drafters only about verified drafts."""
    drafter.accept(0, int32([5]), 0)
    assert drafter.stats()["ngram-simple"].accept_calls == 0


def test_reset_stats_sets_every_count_to_zero(drafter: Any) -> None:
    drafter.propose(0, 5)
    drafter.reset_stats()
    assert drafter.stats()["ngram-simple"].num_drafts == 0
    assert drafter.stats()["ngram-simple"].propose_calls == 0


def test_a_draft_that_was_pending_at_a_reset_counts_when_it_is_verified(drafter: Any) -> None:
    draft = drafter.propose(0, 5)
    drafter.reset_stats()
    drafter.shorten(0, 3)
    drafter.accept(0, draft[:2], 2)
    stats = drafter.stats()["ngram-simple"]
    assert (stats.num_drafts, stats.num_draft_tokens) == (1, 3)
    assert (stats.accept_calls, stats.num_accepted_drafts, stats.num_accepted_tokens) == (1, 1, 2)
    draft = drafter.propose(0, 4)
    drafter.accept(0, draft[:3], 3)
    stats = drafter.stats()["ngram-simple"]
    assert (stats.num_drafts, stats.num_draft_tokens) == (2, 7)
    assert (stats.accept_calls, stats.num_accepted_drafts, stats.num_accepted_tokens) == (2, 2, 5)
