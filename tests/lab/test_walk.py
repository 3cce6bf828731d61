"""The walk over an output, counted by hand and beside Drafter.replay."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from helpers.replays import Scripted, request, tokens
from long_lived import total_of
from ngramspec import create_drafter
from ngramspec.costs import PROFILES, CostTable
from ngramspec.lab.replay.sets import replay
from ngramspec.lab.replay.subjects import subject
from ngramspec.lab.replay.walk import ReplayTally, Subject, walk

LINE = CostTable(((1, 10.0), (2, 11.0)))
# Prompt 1 2, output 3 4 5 6 7 8: the 3 comes with the prompt, 4 5 of three drafted tokens are
# right, 6 is the target's, and of the last draft only what fits behind it is counted.
BY_HAND = ReplayTally(1, (0, 0, 1, 1), (0, 0, 2), 0, 0, 0)


def test_a_walk_counted_by_hand() -> None:
    player = Scripted([tokens(4, 5, 9), tokens(7, 8, 9, 9)])
    tally = walk(lambda: player, [request([1, 2], [3, 4, 5, 6, 7, 8])])
    assert player.calls == [
        ("begin", [1, 2]),
        ("accept", [3], 0),
        ("propose", 5),
        ("accept", [4, 5, 6], 2),
        ("propose", 2),
        ("accept", [7, 8], 2),
        ("end",),
    ]
    assert tally.draft_lengths == BY_HAND.draft_lengths
    assert tally.accepted_lengths == BY_HAND.accepted_lengths
    assert tally.nbytes == 6
    assert tally.begin_ns > 0
    assert tally.step_ns > 0


def test_a_walk_with_trees_counted_by_hand() -> None:
    # 4 and 9 may come first, 5 after either: 4 5 is right. Of the second tree, what lies beyond
    # the end of the output does not count.
    first = (tokens(9, 4, 5, 5), tokens(-1, -1, 0, 1))
    second = (tokens(7, 8, 8, 6, 6), tokens(-1, -1, 0, 2, 3))
    player = Scripted([first, second])
    tally = walk(lambda: player, [request([1, 2], [3, 4, 5, 6, 7, 8])])
    assert player.calls[3] == ("accept", [4, 5, 6], 2)
    assert player.calls[5] == ("accept", [7, 8], 2)
    assert tally.draft_lengths == (0, 0, 0, 1, 1)
    assert tally.accepted_lengths == (0, 0, 2)


def test_figures_of_the_walk() -> None:
    assert (BY_HAND.steps, BY_HAND.drafted, BY_HAND.accepted, BY_HAND.tokens) == (2, 5, 4, 6)
    assert BY_HAND.mean_accepted_length == 3.0
    assert BY_HAND.acceptance == 4 / 5
    assert BY_HAND.drafted_per_token == 5 / 6
    # T(1) = 10; batches of 4 and of 3 tokens cost 13 and 12.
    assert BY_HAND.speedup(LINE) == pytest.approx(6 * 10 / (13 + 12))


def test_without_drafts_every_figure_is_that_of_plain_decoding() -> None:
    tally = walk(lambda: Scripted([]), [request([1], [2, 3, 4])])
    assert tally.draft_lengths == (2,)
    assert tally.mean_accepted_length == 1.0
    assert tally.speedup(LINE) == 1.0
    assert (tally.acceptance, tally.drafted_per_token) == (0.0, 0.0)


@pytest.mark.parametrize("spec", ["ngram-mod", "ngram-cache", "ngram-map-k,ngram-cache"])
def test_the_native_replay_counts_the_same(trace_of: Any, spec: str) -> None:
    trace = trace_of("structured.spider_sql", 60)
    drafter = create_drafter(spec)
    native = [drafter.replay(one.prompt, one.output) for one in trace.requests]
    tally = replay(trace, subject(spec), PROFILES).first
    assert tally.requests == len(native) == 60
    assert tally.steps == sum(one.steps for one in native)
    assert tally.drafted == sum(one.drafted for one in native)
    assert tally.accepted == sum(one.accepted for one in native)
    longest = max(len(one.draft_lengths) for one in native)
    lengths = [sum(int(n) for one in native for n in one.draft_lengths[i : i + 1])
               for i in range(longest)]  # fmt: skip
    assert list(tally.draft_lengths) == lengths[: len(tally.draft_lengths)]
    assert not any(lengths[len(tally.draft_lengths) :])


def test_cold_forgets_what_in_order_keeps(trace_of: Any) -> None:
    again = trace_of("structured.spider_sql", 20)
    twice = type(again)("twice", again.requests * 2)
    drafter = subject("ngram-mod:n_match=4,n_min=1")
    in_order = replay(twice, drafter, PROFILES).first
    cold = replay(twice, drafter, PROFILES, cold=True).first
    once = replay(again, drafter, PROFILES, cold=True).first
    assert cold.accepted == 2 * once.accepted
    assert in_order.accepted > 2 * cold.accepted
    assert in_order.requests == cold.requests == 40


def test_on_request_is_called_after_each_request(trace_of: Any) -> None:
    calls: list[int] = []
    trace = trace_of("structured.spider_sql", 3)
    replay(trace, subject("ngram-mod"), PROFILES, on_request=lambda: calls.append(1))
    assert len(calls) == 3


def test_an_adaptive_drafter_is_replayed_once_per_profile(trace_of: Any) -> None:
    def open_player(profile: CostTable) -> Scripted:
        return Scripted([tokens(1)] if profile.name == "cpu" else [])

    trace = trace_of("structured.spider_sql", 2)
    drafter = Subject("adaptive", open_player, adaptive=True)
    outcome = replay(trace, drafter, PROFILES)
    assert outcome.adaptive
    assert {name: tally.drafted for name, tally in outcome.tallies.items()} == {
        "h100-8b": 0, "moe": 0, "cpu": 1, "moe-a3b": 0,
    }  # fmt: skip
    report = outcome.as_json(PROFILES)
    assert report["drafted_per_token"] == 0.0
    assert report["by_profile"]["cpu"]["drafted_per_token"] > 0
    fixed = replay(trace, Subject("fixed", lambda _: Scripted([])), PROFILES)
    assert not fixed.adaptive
    assert "by_profile" not in fixed.as_json(PROFILES)


def test_tallies_add_up() -> None:
    one = ReplayTally(1, (2, 1), (3,), 5, 7, 11)
    other = dataclasses.replace(one, draft_lengths=(1, 0, 2), accepted_lengths=(1, 2), nbytes=None)
    assert total_of([one, other]) == ReplayTally(2, (3, 1, 2), (4, 2), 10, 14, 11)
    assert total_of([other]) == other
