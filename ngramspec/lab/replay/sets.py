"""Several sets replayed through several drafters, for targets with different costs of a pass."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ngramspec.costs import PROFILES, CostTable, load_costs
from ngramspec.errors import InputError
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.walk import ReplayTally, Subject, walk

Profiles = Mapping[str, CostTable]
# Shows progress: takes a title and a number of steps; yields a function that advances a step.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], object]]]


@dataclass(frozen=True)
class Outcome:
    """The replay of a set, one tally per profile, all the same unless the drafter is adaptive.

    tallies: by profile, in order.
    """

    tallies: Mapping[str, ReplayTally]

    @property
    def first(self) -> ReplayTally:
        return next(iter(self.tallies.values()))

    @property
    def adaptive(self) -> bool:
        """Whether the profiles were replayed one by one."""
        return any(tally is not self.first for tally in self.tallies.values())

    def speedups(self, profiles: Profiles) -> dict[str, float]:
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
        opener = partial(subject.open, table)
        return walk(opener, trace.requests, cold=cold, on_request=on_request)

    if not subject.adaptive:
        return same_for_all(tally(next(iter(profiles.values()))), profiles)
    return Outcome({name: tally(table) for name, table in profiles.items()})


def decided(trace: Trace, profiles: Profiles) -> dict[str, Outcome]:
    """Return the outcomes of what a set's server decided on drafts itself, by whose they were."""
    outcomes = {}
    for name, passes in trace.decided.items():
        sent, right = (Counter(counts) for counts in zip(*passes, strict=True))
        drafted, accepted = (tuple(one[i] for i in range(max(one) + 1)) for one in (sent, right))
        tally = ReplayTally(len(trace.requests), drafted, accepted, 0, 0, None)
        outcomes[name] = same_for_all(tally, profiles)
    return outcomes


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; 1 without values."""
    return statistics.geometric_mean([*values] or [1.0])


@contextmanager
def no_progress(title: str, total: int) -> Iterator[Callable[[], object]]:
    yield lambda: None


@dataclass(frozen=True)
class Replays:
    """All outcomes of a run.

    profiles: costs of targets by name.
    drafters: the subjects in the order given.
    sets: by set and subject; then what the set's server decided, see `decided`.
    cold: whether every request had a fresh drafter.
    """

    profiles: Profiles
    drafters: Sequence[str]
    sets: Mapping[str, Mapping[str, Outcome]]
    cold: bool = False

    def speedup(self, set_name: str, subject: str, profile: str) -> float:
        return self.sets[set_name][subject].tallies[profile].speedup(self.profiles[profile])

    def mean_speedup(self, subject: str, profile: str) -> float | None:
        """Return the geometric mean over the sets; None if the subject lacks one."""
        if any(subject not in row for row in self.sets.values()):
            return None
        return geometric_mean(self.speedup(name, subject, profile) for name in self.sets)

    def as_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"sets": self.figures(self.drafters[0])}
        facts["drafter"] = self.drafters[0]
        facts["knowledge"] = "cold" if self.cold else "kept"
        if len(self.drafters) > 1:
            facts["drafters"] = {name: {"sets": self.figures(name)} for name in self.drafters}
        others = dict.fromkeys(name for row in self.sets.values() for name in row)
        if decided := [name for name in others if name not in self.drafters]:
            facts["decided"] = {name: {"sets": self.figures(name)} for name in decided}
        facts["geometric_mean_speedup"] = {name: self.means(name) for name in self.drafters}
        return facts

    def figures(self, subject: str) -> dict[str, Any]:
        rows = {name: row[subject] for name, row in self.sets.items() if subject in row}
        return {name: outcome.as_json(self.profiles) for name, outcome in rows.items()}

    def means(self, subject: str) -> dict[str, float]:
        means = {profile: self.mean_speedup(subject, profile) for profile in self.profiles}
        return {profile: round(mean, 4) for profile, mean in means.items() if mean is not None}


def replay_sets(
    traces: Sequence[Trace],
    subjects: Sequence[Subject],
    profiles: Profiles = PROFILES,
    *,
    cold: bool = False,
    progress: Progress = no_progress,
) -> Replays:
    """Replay sets through all subjects.

    Args:
        traces: The sets.
        subjects: Drafters, see ngramspec.lab.replay.subjects.subject.
        profiles: Costs of targets by name.
        cold: Have a fresh drafter for every request.
        progress: Shows the progress.
    """
    rounds = sum(len(profiles) if subject.adaptive else 1 for subject in subjects)
    total = rounds * sum(len(trace.requests) for trace in traces)
    with progress("replaying", total) as advance:
        sets = {
            trace.name: {
                subject.name: replay(trace, subject, profiles, cold=cold, on_request=advance)
                for subject in subjects
            }
            | decided(trace, profiles)
            for trace in traces
        }
    return Replays(profiles, [subject.name for subject in subjects], sets, cold)


def load_profiles(files: Sequence[Path]) -> Profiles:
    """Return the built-in profiles and measured tables of costs, by name.

    Raises:
        InputError: Two have the same name.
        FormatError, OSError: As load_costs.
    """
    profiles = dict(PROFILES)
    for path in files:
        table = load_costs(path)
        name = table.name or path.stem
        if name in profiles:
            raise InputError(f"{path}: there is already a profile named {name!r}")
        profiles[name] = table
    return profiles
