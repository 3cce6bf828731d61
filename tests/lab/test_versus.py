"""Means over sets and ratios to peers, by hand."""

from __future__ import annotations

import math

import pytest

from ngramspec.costs import CostTable
from ngramspec.lab.replay.sets import Replays, geometric_mean, same_for_all
from ngramspec.lab.replay.walk import ReplayTally
from peers import ORACLE
from peers.versus import as_json, compare

# A pass costs the same for any batch, so the speed-up is tokens per pass.
FLAT = {"flat": CostTable(((1, 1.0),), "flat")}


def tally(steps: int, accepted: int) -> ReplayTally:
    """Steps with one drafted token each, of which some are right."""
    return ReplayTally(1, (0, steps), (steps - accepted, accepted), 1000 * steps, 2000 * steps, 64)


def replays(**sets: dict[str, tuple[int, int]]) -> Replays:
    rows = {
        name: {subject: same_for_all(tally(*counts), FLAT) for subject, counts in row.items()}
        for name, row in sets.items()
    }
    return Replays(FLAT, ["mine"], rows)


BOTH = replays(
    a={"mine": (10, 5), "x": (10, 2), "y": (10, 8), ORACLE: (10, 10)},
    b={"mine": (10, 6), "x": (10, 4), "y": (10, 1), ORACLE: (10, 8)},
)


def test_ratios_to_the_best_peer_of_each_set() -> None:
    versus = compare(BOTH, "mine")["flat"]
    assert versus.best == {"a": "y", "b": "x"}
    assert versus.ratios == {"a": pytest.approx(1.5 / 1.8), "b": pytest.approx(1.6 / 1.4)}
    assert versus.mean_ratio == pytest.approx(math.sqrt(1.5 / 1.8 * 1.6 / 1.4))
    assert versus.mean_share == pytest.approx(math.sqrt(1.5 / 2.0 * 1.6 / 1.8))


def test_a_peer_slower_than_no_drafts_is_no_measure() -> None:
    costs = {"dear": CostTable(((1, 1.0), (2, 2.0)), "dear")}
    row = {name: same_for_all(tally(10, right), costs) for name, right in (("mine", 9), ("x", 2))}
    outcomes = Replays(costs, ["mine"], {"a": row})
    assert outcomes.speedup("a", "x", "dear") < 1.0
    assert compare(outcomes, "mine")["dear"].ratios == {"a": outcomes.speedup("a", "mine", "dear")}


def test_means_need_every_set() -> None:
    assert BOTH.mean_speedup("mine", "flat") == pytest.approx(math.sqrt(1.5 * 1.6))
    one = replays(a={"mine": (10, 5), "x": (10, 2)}, b={"mine": (10, 5)})
    assert one.mean_speedup("x", "flat") is None
    assert compare(one, "mine")["flat"].ratios.keys() == {"a"}
    assert compare(one, "mine")["flat"].mean_share is None
    assert geometric_mean([]) == 1.0


def test_json_without_peers_has_only_ours() -> None:
    report = replays(a={"mine": (10, 5)}).as_json()
    assert list(report) == ["sets", "drafter", "knowledge", "geometric_mean_speedup"]
    row = report["sets"]["a"]
    assert row["mean_accepted_length"] == 1.5
    assert row["acceptance"] == 0.5
    assert row["drafted_per_token"] == pytest.approx(10 / 15, abs=1e-4)
    assert row["us_per_step"] == 2.0
    assert row["begin_us_per_request"] == 10.0
    assert row["modelled_speedup"] == {"flat": 1.5}
    assert row["memory_bytes"] == 64


def test_json_with_peers() -> None:
    report = as_json(BOTH, {})
    assert list(report["peers"]) == ["x", "y", ORACLE]
    assert report["peers"]["y"]["sets"]["a"]["mean_accepted_length"] == 1.8
    against = report["against_peers"]["mine"]["flat"]
    assert against["best_peer"] == {"a": "y", "b": "x"}
    assert against["geometric_mean_ratio"] == pytest.approx(0.9759, abs=1e-4)
    assert against["oracle_share"]["a"] == 0.75
