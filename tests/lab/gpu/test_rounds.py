"""Rounds within a time: who takes turns, when they stop, what counts when one fails."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("scripts")
MODES = ("plain", "drafts")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A group whose runs take a time each, and may fail; they are numbered."""

    def __init__(self, name: str, clock: Clock, seconds: float, ran: list[Any]) -> None:
        self.name, self.clock, self.seconds, self.ran = name, clock, seconds, ran
        self.once, self.restarts, self.number = 0.0, 0, 0
        self.once_at: dict[int, float] = {}
        self.errors: dict[int, Exception] = {}

    def run(self, mode: str) -> int:
        self.number += 1
        self.ran.append((self.name, mode))
        self.once += self.once_at.get(self.number, 0.0)
        self.clock.now += self.seconds + self.once_at.get(self.number, 0.0)
        if self.number in self.errors:
            raise self.errors[self.number]
        return self.number

    def restart(self) -> None:
        self.restarts += 1


def rounds_of(groups: list[Timed], rounds: int, minutes: float | None, **options: Any) -> Any:
    from replay_rounds import Budget, run_rounds

    seen: list[list[int]] = []

    def after(runs: Any) -> None:
        seen.append([len(one.done) for one in runs])

    budget = Budget(minutes, groups[0].clock)
    return run_rounds(groups, MODES, rounds, budget, after, **options), seen


def test_groups_take_turns_by_rounds_and_each_round_is_told_of() -> None:
    clock, ran = Clock(), []
    groups = [Timed(name, clock, 1.0, ran) for name in "ab"]
    runs, seen = rounds_of(groups, 2, None)
    first, second = [("plain", "drafts"), ("drafts", "plain")]
    assert ran == [
        (name, mode) for order in (first, second, first) for name in "ab" for mode in order
    ]
    assert seen == [[1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]
    assert [one.of("plain") for one in runs] == [[4, 5], [4, 5]]  # without the first round
    assert [one.of("drafts") for one in runs] == [[3, 6], [3, 6]]


def test_no_round_begins_that_would_not_fit_but_a_shorter_one_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from replay_rounds import state_of

    clock, ran = Clock(), []
    groups = [Timed("long", clock, 10.0, ran), Timed("short", clock, 2.0, ran)]
    runs, _ = rounds_of(groups, 3, 1.0)
    # 24 s a round of both; after two, 12 s are left: not 20 for the long one, but 4 for the short.
    assert [len(one.done) for one in runs] == [2, 4]
    assert clock.now == 56.0
    assert runs[0].stopped == "no time for another round of 20 s"
    assert "long: no time for another round of 20 s" in capsys.readouterr().err
    state = state_of(runs, 3)
    assert state["complete"] is False
    assert state["rounds"] == {"long": 1, "short": 3}
    assert state["stopped"] == {"long": runs[0].stopped}


def test_what_is_done_once_is_not_expected_again() -> None:
    clock, ran = Clock(), []
    group = Timed("a", clock, 10.0, ran)
    group.once_at = {1: 15.0, 2: 15.0}
    runs, _ = rounds_of([group], 1, 1.3)  # 50 s with what is done once, 28 s are left
    assert len(runs[0].done) == 2


def test_a_round_in_which_time_is_up_is_left_out() -> None:
    clock, ran = Clock(), []
    groups = [Timed("a", clock, 50.0, ran), Timed("b", clock, 1.0, ran)]
    runs, _ = rounds_of(groups, 2, 0.5)
    assert ran == [("a", "plain")]
    assert [one.done for one in runs] == [[], []]
    assert "in the middle of a round" in runs[0].stopped
    assert runs[1].stopped


def test_the_warm_up_counts_where_there_is_no_other_round() -> None:
    from replay_rounds import state_of

    clock, ran = Clock(), []
    runs, _ = rounds_of([Timed("a", clock, 20.0, ran)], 3, 1.0)
    assert runs[0].warm_up_only
    assert runs[0].of("drafts") == [2]
    assert state_of(runs, 3)["rounds"] == {"a": 0}


def test_rounds_are_dropped_once_and_begin_again(capsys: pytest.CaptureFixture[str]) -> None:
    clock, ran = Clock(), []
    group = Timed("a", clock, 1.0, ran)
    group.errors = {6: ValueError("no graph")}
    runs, _ = rounds_of([group, Timed("b", clock, 1.0, ran)], 2, None, again=(ValueError,))
    assert "a: no graph. Its rounds are dropped, it begins again" in capsys.readouterr().err
    assert (group.restarts, group.number) == (1, 12)
    assert runs[0].of("plain") == [10, 11]  # after a new warm-up
    assert [len(one.done) for one in runs] == [3, 3]

    group = Timed("a", clock, 1.0, ran)
    group.errors = {1: ValueError("no graph"), 2: ValueError("nor now")}
    runs, _ = rounds_of([group], 2, None, again=(ValueError,))
    assert runs[0].stopped == "failed again: nor now"
    assert runs[0].done == []


def test_a_group_that_is_given_up_keeps_its_rounds_and_others_go_on() -> None:
    clock, ran = Clock(), []
    group = Timed("a", clock, 1.0, ran)
    group.errors = {6: MemoryError("no room")}
    runs, _ = rounds_of([group, Timed("b", clock, 1.0, ran)], 2, None, never=(MemoryError,))
    assert [len(one.done) for one in runs] == [2, 3]
    assert runs[0].stopped == "given up: no room"
    group.errors = {group.number + 1: KeyError("a mistake")}
    with pytest.raises(KeyError, match="a mistake"):
        rounds_of([group], 1, None, never=(MemoryError,))


def test_minutes_are_above_nought() -> None:
    from replay_rounds import minutes

    assert minutes("0.5") == 0.5
    for text in ("0", "-1", "inf", "nan", "soon"):
        with pytest.raises(argparse.ArgumentTypeError, match="no number of minutes above 0"):
            minutes(text)
