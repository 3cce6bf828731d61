"""Outcome: the result of a subject on a set, per profile; and the replay of our drafters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.costs import CostTable
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.player import Subject
from ngramspec.lab.replay.tally import ReplayTally
from ngramspec.lab.replay.walk import walk

Profiles = Mapping[str, CostTable]


@dataclass(frozen=True)
class Outcome:
    """The replay of a set, one tally per profile, all the same unless the drafter is adaptive.

    tallies: by profile, in order.
    """

    tallies: Mapping[str, ReplayTally]

    @property
    def first(self) -> ReplayTally:
        """The tally of the first profile."""
        return next(iter(self.tallies.values()))

    @property
    def adaptive(self) -> bool:
        """Whether the profiles were replayed one by one."""
        return any(tally is not self.first for tally in self.tallies.values())

    def speedups(self, profiles: Profiles) -> dict[str, float]:
        """Return the modelled speed-up for each profile."""
        return {name: tally.speedup(profiles[name]) for name, tally in self.tallies.items()}

    def as_json(self, profiles: Profiles) -> dict[str, Any]:
        """Return the figures; those of an adaptive drafter are of the first profile."""
        facts: dict[str, Any] = figures(self.first)
        speedups = self.speedups(profiles)
        facts["modelled_speedup"] = {name: round(x, 4) for name, x in speedups.items()}
        if self.adaptive:
            facts["by_profile"] = {name: figures(tally) for name, tally in self.tallies.items()}
        return facts


def figures(tally: ReplayTally) -> dict[str, Any]:
    """Return the figures of a tally that need no costs."""
    return {
        "mean_accepted_length": round(tally.mean_accepted_length, 4),
        "acceptance": round(tally.acceptance, 4),
        "drafted_per_token": round(tally.drafted_per_token, 4),
        "us_per_step": round(tally.us_per_step, 3),
        "begin_us_per_request": round(tally.begin_us, 1),
        "memory_bytes": tally.nbytes,
        "steps": tally.steps,
        "tokens": tally.tokens,
    }


def same_for_all(tally: ReplayTally, profiles: Profiles) -> Outcome:
    """Return the outcome of a drafter that drafts the same for every target."""
    return Outcome(dict.fromkeys(profiles, tally))


def replay(
    trace: Trace,
    subject: Subject,
    profiles: Profiles,
    *,
    cold: bool = False,
    on_request: Callable[[], object] | None = None,
) -> Outcome:
    """Replay a set through a drafter: once, or once per profile if its drafts depend on costs."""

    def tally(table: CostTable) -> ReplayTally:
        opener = lambda: subject.open(table)  # noqa: E731
        return walk(opener, trace.requests, cold=cold, on_request=on_request)

    if not subject.adaptive:
        return same_for_all(tally(next(iter(profiles.values()))), profiles)
    return Outcome({name: tally(table) for name, table in profiles.items()})


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; 1 without values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def count_requests(traces: Sequence[Trace], subjects: Sequence[Subject], profiles: Profiles) -> int:
    """Return how often on_request will be called for all of them."""
    rounds = sum(len(profiles) if subject.adaptive else 1 for subject in subjects)
    return rounds * sum(len(trace.requests) for trace in traces)
