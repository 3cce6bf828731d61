"""Histogram and EngineStats count what they are told; SlotInfo and Timings tell it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Oracle
from helpers.machines import SETTINGS
from ngramspec.engine import (
    AutoPolicy,
    Engine,
    EngineStats,
    Histogram,
    Request,
    Timings,
)


def test_values_on_a_bound_belong_to_its_bucket() -> None:
    histogram = Histogram([1, 2, 4])
    for value in (0, 1, 1.5, 2, 3, 4, 4.1, 100):
        histogram.observe(value)
    assert histogram.buckets == [2, 2, 2, 2]
    assert (histogram.count, histogram.total) == (8, pytest.approx(115.6))
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 4), ("4.0", 6), ("+Inf", 8)]


def test_a_value_may_count_several_times() -> None:
    histogram = Histogram([1.0])
    histogram.observe(0.5, 4)
    histogram.observe(3, 0)
    assert (histogram.buckets, histogram.count, histogram.total) == ([4, 0], 4, 2.0)


def test_a_histogram_without_values_has_none() -> None:
    histogram = Histogram([])
    assert (histogram.cumulative(), histogram.count, histogram.total) == ([("+Inf", 0)], 0, 0)


@given(
    bounds=st.lists(st.integers(-9, 9), unique=True).map(sorted),
    values=st.lists(st.integers(-12, 12), max_size=30),
)
@settings(SETTINGS)
def test_histograms_agree_with_plain_counting(bounds: list[int], values: list[int]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in bounds]
    assert [count for _, count in histogram.cumulative()] == [*expected, len(values)]
    assert (histogram.count, histogram.total) == (len(values), sum(values))


def test_drafts_count_per_position() -> None:
    stats = EngineStats()
    for drafted, accepted in ((4, 2), (3, 0), (5, 5), (1, 1)):
        stats.count_draft(drafted, accepted)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (4, 13, 8)
    assert stats.accepted_per_position == [3, 2, 1, 1, 1]
    assert (stats.draft_lengths.count, stats.draft_lengths.total) == (4, 13)


def test_two_engines_share_no_counters() -> None:
    first, second = EngineStats(), EngineStats()
    first.count_draft(2, 1)
    first.finished["stop"] = 1
    assert (second.num_drafts, second.finished, second.draft_lengths.count) == (0, {}, 0)


def test_timings_are_never_negative() -> None:
    timings = Timings()
    timings.finished = 5.0  # without a slot
    assert timings.prompt_seconds == 0.0
    timings.finished = 0.0
    timings.submitted, timings.started = 1.0, 2.0
    assert (timings.prompt_seconds, timings.decode_seconds) == (0.0, 0.0)
    timings.finished = 5.0  # without a token
    assert (timings.prompt_seconds, timings.decode_seconds) == (3.0, 0.0)
    timings.first_token = 4.0
    assert (timings.prompt_seconds, timings.decode_seconds) == (2.0, 1.0)
    assert timings.per_draft().shape == (0, 2)


def test_the_engine_counts_what_it_did() -> None:
    target = FakeTarget(max_batch=16)
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=4))
    answer = engine.generate([Request(prompt_ids=int32([9] * 20), max_tokens=11, slot=0)])[0]
    stats = engine.stats()
    assert (stats.num_requests, stats.finished) == (1, {"length": 1})
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (20, 0)
    assert target.batches == [16, 4, 5, 5]  # 1 token, then 5 and 5
    assert (stats.num_steps, stats.num_batch_tokens, stats.num_emitted_tokens) == (4, 30, 11)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 8, 8)
    assert stats.accepted_per_position == [2, 2, 2, 2]
    assert answer.timings.per_draft().tolist() == [[4, 4], [4, 4]]
    assert (stats.num_busy_slots, stats.num_slot_steps) == (4, 3)
    assert (stats.time_to_first_token.count, stats.inter_token_latency.count) == (1, 10)
    assert (stats.request_latency.count, stats.queue_time.count) == (1, 1)
    assert (stats.batch_tokens.count, stats.batch_tokens.total) == (4, 30)
    timings = answer.timings
    assert (timings.num_prompt, timings.num_cached, timings.num_steps) == (20, 0, 3)
    assert timings.submitted <= timings.started <= timings.first_token <= timings.last_token
    assert timings.last_token <= timings.finished
    assert min(stats.prompt_seconds, stats.decode_seconds, stats.draft_seconds) > 0
    again = engine.generate([Request(prompt_ids=int32([9] * 20), max_tokens=1, slot=0)])[0]
    assert (again.timings.num_cached, stats.num_cached_tokens) == (19, 19)
    assert stats.num_prompt_tokens == 21


def test_slots_tell_what_they_do() -> None:
    target = FakeTarget(max_batch=8)
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=3))
    idle = engine.slots()
    assert [(s.id, s.state, s.request_id, s.num_tokens) for s in idle] == [
        (0, "idle", "", 0),
        (1, "idle", "", 0),
    ]
    engine.submit(Request(prompt_ids=int32([5] * 12), max_tokens=9, id="me"))
    engine.step()
    info = engine.slots()[0]
    assert (info.state, info.request_id, info.num_past, info.num_emitted) == ("prompt", "me", 8, 0)
    assert info.request_number == 0
    engine.step()
    engine.step()
    info = engine.slots()[0]
    assert (info.state, info.num_prompt, info.num_tokens, info.num_past) == ("decode", 12, 17, 16)
    assert (info.num_emitted, info.speculative) == (5, True)
    assert (info.num_draft_tokens, info.num_accepted_tokens) == (3, 3)
    while engine.step():
        pass
    ended = engine.slots()
    assert [slot.state for slot in ended] == ["idle", "idle"]
    assert [(slot.request_id, slot.request_number) for slot in ended] == [("me", -1), ("", -1)]
    answer = engine.submit(Request(prompt_ids=int32([5]), max_tokens=2, slot=0, id="you"))
    engine.step()
    info = engine.slots()[0]
    assert (info.request_id, info.request_number, answer.number) == ("you", 1, 1)


def test_statistics_lines_name_the_sources_that_were_asked() -> None:
    target = FakeTarget()
    engine = Engine(target, "ngram-simple", params={"ngram-simple": {"size_n": 1}})
    assert engine.stats_lines() == []
    engine.generate([Request(prompt_ids=int32([1, 1]), max_tokens=30)])
    assert len(engine.stats_lines()) == 1
    assert engine.stats_lines()[0].startswith("ngram-simple: ")
    assert engine.stats_lines(verbose=True)[0].startswith("statistics     ngram-simple: #calls")
    assert set(engine.source_stats()) == {"ngram-simple", "prediction"}
