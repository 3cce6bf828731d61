"""Our drafter beside a second source with a price: by hand, and never far behind the better."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from helpers.replays import request
from ngramspec.costs import PROFILES, CostTable
from ngramspec.lab.recordings.traces import Trace
from second_source import OtherSource, arbitrate

LINE = CostTable(((1, 10.0), (2, 11.0), (3, 12.0)))
EAGLE = OtherSource("eagle", 4, 0.05, 0.05)


def made_up(trace: Trace, chance: Callable[[int, int], float]) -> list[list[int]]:
    """Return lengths of a source that is right by chance(request, position)."""
    rng = random.Random(0)
    rows = []
    for index, one in enumerate(trace.requests):
        lengths = [1] * len(one.output)
        for at in range(len(lengths)):
            while lengths[at] <= EAGLE.tokens and rng.random() < chance(index, at):
                lengths[at] += 1
        rows.append(lengths)
    return rows


def test_counted_by_hand() -> None:
    # All tokens differ, so that ours never drafts. The source's first pass, at the second output
    # token, would emit 3 tokens with two drafted ones, the next 1, and the last 1.
    trace = Trace("set", (request([1, 2], [3, 4, 5, 6, 7, 8]),))
    lengths = [[9, 3, 1, 1, 1, 1]]
    speedups = arbitrate(trace, lengths, OtherSource("eagle", 2, 0.0, 0.1), LINE)
    assert speedups.ours == 1.0
    # By best length 2: (1.2 + 0.1) for three tokens, then twice (1.2 or 1.1 + 0.1) for one.
    by_length = {1: 5 / (4 * 1.2), 2: 5 / (1.3 + 1.3 + 1.2)}
    assert speedups.other == pytest.approx(by_length[2])
    assert speedups.other_tokens == 2
    assert speedups.perfect == pytest.approx(5 / (1.3 + 1 + 1))
    assert speedups.passes >= 3
    assert speedups.arbiter > 1.0


def test_a_source_that_never_helps_costs_a_hundredth(trace_of: Callable[..., Trace]) -> None:
    trace = trace_of("code_edit.debugbench", 30)
    lengths = made_up(trace, lambda *_: 0.0)
    for profile in PROFILES.values():
        speedups = arbitrate(trace, lengths, EAGLE, profile)
        assert speedups.other_tokens == 0
        assert 1.001 * speedups.ours > speedups.arbiter > 0.985 * speedups.ours
        assert speedups.perfect == pytest.approx(speedups.ours, rel=0.02)


def test_tokens_of_both_in_a_pass_are_faster_where_passes_are_cheap(
    trace_of: Callable[..., Trace],
) -> None:
    trace = trace_of("chat_revise.mt_redundant", 8)
    lengths = made_up(trace, lambda *_: 0.8)
    speedups = arbitrate(trace, lengths, EAGLE, PROFILES["h100-8b"], branches=4)
    assert speedups.arbiter > 1.05 * speedups.either > 1.05 * max(speedups.ours, speedups.other)
    dear = arbitrate(trace, lengths, EAGLE, PROFILES["moe-a3b"], branches=4)
    assert dear.arbiter > 0.98 * dear.either


def test_a_source_that_never_helps_costs_little_beside_trees(
    trace_of: Callable[..., Trace],
) -> None:
    trace = trace_of("code_edit.debugbench", 8)
    lengths = made_up(trace, lambda *_: 0.0)
    for profile in PROFILES.values():
        speedups = arbitrate(trace, lengths, EAGLE, profile, branches=4)
        assert speedups.arbiter > 0.98 * speedups.ours


def test_both_together_are_faster_than_either(trace_of: Callable[..., Trace]) -> None:
    kinds: dict[str, Callable[[int, int], float]] = {
        "always": lambda *_: 0.9,
        "by request": lambda index, _: 0.9 * (index % 2),
        "in runs": lambda _, at: 1.0 * (at // 150 % 2),
    }
    trace = trace_of("chat_revise.mt_redundant", 14)
    for kind, chance in kinds.items():
        speedups = arbitrate(trace, made_up(trace, chance), EAGLE, PROFILES["h100-8b"])
        better = max(speedups.ours, speedups.other)
        assert speedups.arbiter > 1.03 * better, kind
        assert speedups.arbiter <= 1.05 * speedups.perfect, kind
