"""Rounds of runs within a time: all modes of a group take turns, groups take turns, too.

Where time is short, every group has had a round before any has had many, and what is done can be
saved after each round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from messages import say
from ngramspec.lab.e2e.bench import run_in_turns

Mode = TypeVar("Mode")
Run = TypeVar("Run")
Made = TypeVar("Made", covariant=True)


class Budget:
    """Wall time from now on.

    Args:
        minutes: How long; None = as long as it takes.
        clock: Seconds.
    """

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("inf") if minutes is None else clock() + 60 * minutes

    @property
    def now(self) -> float:
        """Return the time in seconds."""
        return self._clock()

    @property
    def left(self) -> float:
        """Return the seconds that are left, 0 or less when time is up."""
        return self._end - self.now


class Group(Protocol[Made]):
    """What is compared within itself only, such as a batch size."""

    name: str

    @property
    def once(self) -> float:
        """Return the seconds of all runs so far that later runs need not take again."""

    def run(self, mode: Any) -> Made:
        """Do a run of a mode."""

    def restart(self) -> None:
        """Forget what earlier runs have taught: they are not counted."""


class Rounds(Generic[Mode, Run]):
    """The rounds of a group.

    done: by mode, of each round; the first of them warms up.
    stopped: why there are no more, "" while there may be.
    """

    def __init__(self, group: Group[Run]) -> None:
        self.group = group
        self.done: list[dict[Mode, Run]] = []
        self.stopped = ""
        self._seconds = 0.0  # of the last round, without what is done once
        self._restarted = False

    @property
    def counted(self) -> list[dict[Mode, Run]]:
        """Return the rounds that figures are made of: where there is no other, the warm-up."""
        return self.done[1:] or self.done

    @property
    def warm_up_only(self) -> bool:
        """Return whether the figures are those of the warm-up."""
        return len(self.done) < 2

    def of(self, mode: Mode) -> list[Run]:
        """Return a mode's runs that count."""
        return [runs[mode] for runs in self.counted]

    def stop(self, reason: str) -> None:
        """Do no more rounds, and say why."""
        self.stopped = reason
        say(f"{self.group.name}: {reason}")

    def next(
        self,
        modes: Sequence[Mode],
        budget: Budget,
        again: tuple[type[Exception], ...],
        never: tuple[type[Exception], ...],
    ) -> None:
        """Do a round if there is time for it."""
        if budget.left <= self._seconds:
            self.stop(f"no time for another round of {self._seconds:.0f} s")
            return
        started, once = budget.now, self.group.once

        def run(mode: Mode) -> Run:
            if budget.left <= 0:
                raise _TimeIsUp
            return self.group.run(mode)

        try:
            runs = run_in_turns(modes, 1, run, first=len(self.done))[0]
        except _TimeIsUp:
            self.stop("time is up in the middle of a round, which is left out")
        except again as error:
            self.done.clear()
            if self._restarted:
                self.stop(f"failed again: {error}")
                return
            self._restarted = True
            self.group.restart()
            say(f"{self.group.name}: {error}. Its rounds are dropped, it begins again")
        except never as error:
            self.stop(f"given up: {error}")
        else:
            self.done.append(runs)
            self._seconds = budget.now - started - (self.group.once - once)


class _TimeIsUp(Exception):
    pass


def run_rounds(
    groups: Sequence[Group[Run]],
    modes: Sequence[Mode],
    rounds: int,
    budget: Budget,
    after: Callable[[list[Rounds[Mode, Run]]], object],
    again: tuple[type[Exception], ...] = (),
    never: tuple[type[Exception], ...] = (),
) -> list[Rounds[Mode, Run]]:
    """Run every mode of every group once per round.

    No round is begun that would take longer than the time that is left, and none is gone on with
    when time is up: what it has done is left out.

    Args:
        groups: They take turns: each round of one is followed by that of the next.
        modes: Each round begins with another one.
        rounds: Of each group, after one to warm up.
        budget: When to stop.
        after: Called after every round with the rounds of all groups.
        again: Errors after which a group's rounds are dropped and it begins again, once.
        never: Errors after which a group does no more rounds; those that are done count.

    Returns:
        The rounds of each group.
    """
    series: list[Rounds[Mode, Run]] = [Rounds(group) for group in groups]
    while True:
        waiting = [one for one in series if not one.stopped and len(one.done) <= rounds]
        if not waiting:
            return series
        for one in waiting:
            one.next(modes, budget, again, never)
            after(series)


def state_of(series: Sequence[Rounds[Any, Any]], rounds: int) -> dict[str, Any]:
    """Return for the results which rounds are done, and why some are not."""
    return {
        "complete": all(len(one.done) > rounds for one in series),
        "rounds": {one.group.name: max(0, len(one.done) - 1) for one in series},
        "stopped": {one.group.name: one.stopped for one in series if one.stopped},
    }


def minutes(text: str) -> float:
    """Read the value of --minutes.

    Raises:
        argparse.ArgumentTypeError: It is no number above 0.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return value


def add_minutes(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--minutes", type=minutes, help="begin no round that would last longer (no limit)"
    )
