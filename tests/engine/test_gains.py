"""What draft sources have saved: an estimate that the figures it is made of explain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, EngineStats, FixedLength, Request
from ngramspec.engine.gains import seconds_saved
from ngramspec.stats import SourceStats


def source(name: str, drafted: int, accepted: int, ns: int = 0) -> SourceStats:
    return SourceStats(name, 1, 1, 1, 10, 1, drafted, accepted, (), 0, ns, 0)


def figures(steps: int, emitted: int, drafts: int, drafted: int, accepted: int) -> EngineStats:
    stats = EngineStats()
    stats.num_steps, stats.num_emitted_tokens = steps, emitted
    stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens = drafts, drafted, accepted
    return stats


def cost(tokens: int) -> float:
    return 1.0 + 0.1 * tokens


def test_each_source_gets_its_own_tokens_and_its_own_time() -> None:
    sources = {"a": source("a", 40, 30), "b": source("b", 10, 1, ns=2 * 10**9)}
    saved = seconds_saved(figures(100, 131, 10, 50, 31), sources, cost)
    assert saved["a"] == pytest.approx(30 * 1.1 - 40 * 0.1)
    assert saved["b"] == pytest.approx(1 * 1.1 - 10 * 0.1 - 2.0)


def test_a_token_of_many_slots_saves_its_share_of_a_pass() -> None:
    saved = seconds_saved(figures(100, 431, 10, 50, 31), {"a": source("a", 50, 31)}, cost)
    assert saved["a"] == pytest.approx(31 * 1.4 / 4 - 50 * 0.1)


def test_tokens_that_were_cut_off_do_not_add_to_passes() -> None:
    stats, whole = figures(100, 131, 10, 50, 31), source("a", 50, 31)
    cut = replace(whole, num_draft_tokens=200)
    assert seconds_saved(stats, {"a": cut}, cost) == seconds_saved(stats, {"a": whole}, cost)


def test_nothing_is_saved_before_the_first_draft() -> None:
    assert seconds_saved(figures(0, 0, 0, 0, 0), {"a": source("a", 0, 0)}, cost) == {"a": 0.0}


def test_an_engine_tells_if_its_policy_knows_times() -> None:
    request = Request(prompt_ids=np.arange(1, 30, dtype=np.int32), max_tokens=200)
    timed = AutoPolicy(62, CostTable(((1, 0.01), (63, 0.011))))
    for policy, known in ((timed, True), (FixedLength(4), False)):
        engine = Engine(FakeTarget(), "suffix", policy=policy)
        engine.generate([request])
        assert ("suffix" in engine.seconds_saved()) == known
