"""Several sets replayed through several drafters, and the means over the sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec.costs import PROFILES, load_costs
from ngramspec.errors import InputError
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.outcome import (
    Outcome,
    Profiles,
    count_requests,
    geometric_mean,
    replay,
)
from ngramspec.lab.replay.player import Subject

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
    cold: whether every request had a fresh drafter.
    """

    profiles: Profiles
    drafters: Sequence[str]
    sets: Mapping[str, Mapping[str, Outcome]]
    cold: bool = False

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
    with progress("replaying", count_requests(traces, subjects, profiles)) as advance:
        sets = {
            trace.name: {
                subject.name: replay(trace, subject, profiles, cold=cold, on_request=advance)
                for subject in subjects
            }
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
