"""Several sets replayed through several drafters, and the means over the sets.

And how the cost of a step grows with the context: long prompts, outputs that are edited copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.costs import PROFILES, load_costs
from ngramspec.errors import InputError
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.arbitration import Arbitration, OtherSource, arbitrate
from ngramspec.lab.replay.outcome import (
    Outcome,
    Profiles,
    count_requests,
    geometric_mean,
    replay,
)
from ngramspec.lab.replay.player import Subject, Tokens

CONTEXTS = (1 << 10, 8 << 10, 32 << 10, 128 << 10)  # of growth_traces, like the next four
NUM_REQUESTS = 2
NUM_OUTPUT = 600
EDIT_EVERY = 25
VOCABULARY = 50_000
# Shows progress: takes a title and a number of steps; yields a function that advances a step.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], object]]]


@contextmanager
def no_progress(title: str, total: int) -> Iterator[Callable[[], object]]:
    """Show nothing."""
    yield lambda: None


@dataclass(frozen=True)
class Replays:
    """All outcomes of a run.

    profiles: costs of targets by name.
    drafters: the subjects in the order given.
    sets: by set and subject.
    growth: microseconds per step by subject and length of the context.
    cold: whether every request had a fresh drafter.
    other: a second source beside our default, None = none.
    beside: what both bring, by set and profile.
    """

    profiles: Profiles
    drafters: Sequence[str]
    sets: Mapping[str, Mapping[str, Outcome]]
    growth: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    cold: bool = False
    other: OtherSource | None = None
    beside: Mapping[str, Mapping[str, Arbitration]] = field(default_factory=dict)

    def speedup(self, set_name: str, subject: str, profile: str) -> float:
        """Return a modelled speed-up."""
        return self.sets[set_name][subject].tallies[profile].speedup(self.profiles[profile])

    def mean_speedup(self, subject: str, profile: str) -> float | None:
        """Return the geometric mean over the sets; None if the subject lacks one."""
        if any(subject not in row for row in self.sets.values()):
            return None
        return geometric_mean(self.speedup(name, subject, profile) for name in self.sets)

    def as_json(self) -> dict[str, Any]:
        """Return everything, the first drafter's figures on top."""
        facts: dict[str, Any] = {"sets": self.figures(self.drafters[0])}
        facts["drafter"] = self.drafters[0]
        facts["knowledge"] = "cold" if self.cold else "kept"
        if len(self.drafters) > 1:
            facts["drafters"] = {name: {"sets": self.figures(name)} for name in self.drafters}
        facts["geometric_mean_speedup"] = {name: self.means(name) for name in self.drafters}
        if self.growth:
            facts["growth_us_per_step"] = {
                name: {str(context): round(us, 3) for context, us in row.items()}
                for name, row in self.growth.items()
            }
        if self.other is not None:
            facts["other"] = {
                **asdict(self.other),
                "sets": {
                    name: {profile: figures.as_json() for profile, figures in row.items()}
                    for name, row in self.beside.items()
                },
            }
        return facts

    def figures(self, subject: str) -> dict[str, Any]:
        """Return a subject's figures by set."""
        rows = {name: row[subject] for name, row in self.sets.items() if subject in row}
        return {name: outcome.as_json(self.profiles) for name, outcome in rows.items()}

    def means(self, subject: str) -> dict[str, float]:
        """Return a subject's mean speed-ups by profile; empty if it lacks a set."""
        means = {profile: self.mean_speedup(subject, profile) for profile in self.profiles}
        return {profile: round(mean, 4) for profile, mean in means.items() if mean is not None}


def replay_sets(
    traces: Sequence[Trace],
    subjects: Sequence[Subject],
    profiles: Profiles = PROFILES,
    *,
    growth: Mapping[int, Trace] | None = None,
    cold: bool = False,
    other: OtherSource | None = None,
    progress: Progress = no_progress,
) -> Replays:
    """Replay sets through all subjects.

    Args:
        traces: The sets.
        subjects: Drafters, see ngramspec.lab.replay.subjects.subject.
        profiles: Costs of targets by name.
        growth: Sets by length of the context, to measure the cost of a step.
        cold: Have a fresh drafter for every request.
        other: A second source beside our default, known by recorded lengths; None = none.
        progress: Shows the progress.

    Raises:
        InputError: A request has no lengths of `other`.
    """
    growth = growth or {}
    sets = [*traces, *growth.values()]
    beside = {} if other is None else _replay_beside(traces, other, profiles, progress)
    with progress("replaying", count_requests(sets, subjects, profiles)) as advance:
        outcomes = {
            trace.name: {
                subject.name: replay(trace, subject, profiles, cold=cold, on_request=advance)
                for subject in subjects
            }
            for trace in sets
        }
    names = [subject.name for subject in subjects]
    by_set = {trace.name: outcomes[trace.name] for trace in traces}
    costs = {
        name: {n: outcomes[trace.name][name].first.us_per_step for n, trace in growth.items()}
        for name in names
        if growth
    }
    return Replays(profiles, names, by_set, costs, cold, other, beside)


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


def _replay_beside(
    traces: Sequence[Trace], other: OtherSource, profiles: Profiles, progress: Progress
) -> dict[str, dict[str, Arbitration]]:
    """Return what our default and another source bring together, by set and profile."""
    total = 4 * len(profiles) * sum(len(trace.requests) for trace in traces)
    with progress(f"replaying beside {other.name}", total) as advance:
        return {
            trace.name: {
                name: arbitrate(trace, other, table, advance=advance)
                for name, table in profiles.items()
            }
            for trace in traces
        }


def growth_traces() -> dict[int, Trace]:
    """Return a set per length of the context.

    A prompt is random tokens, its output a slice of it with every 25th token changed.
    """
    return {context: _growth_trace(context) for context in CONTEXTS}


def _growth_trace(context: int) -> Trace:
    rng = np.random.default_rng(context)
    requests = tuple(_growth_request(rng, context) for _ in range(NUM_REQUESTS))
    return Trace(f"context {context}", requests)


def _growth_request(rng: np.random.Generator, context: int) -> RecordedRequest:
    def tokens(count: int) -> Tokens:
        return rng.integers(0, VOCABULARY, count, dtype=np.int32)

    prompt = tokens(context)
    start = int(rng.integers(0, context - NUM_OUTPUT))
    output = prompt[start : start + NUM_OUTPUT].copy()
    output[::EDIT_EVERY] = tokens(len(output[::EDIT_EVERY]))
    return RecordedRequest(prompt, output)
