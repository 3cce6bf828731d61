"""Replaying sets through our drafters and the peers'."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ngramspec.costs import PROFILES, load_costs
from ngramspec.errors import InputError
from ngramspec.lab.comparison.summary import Replays
from ngramspec.lab.peers import ORACLE, PEERS
from ngramspec.lab.peers.file import load_peers, save_peers
from ngramspec.lab.peers.runs import PeerPlaces, run_peers
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.arbitration import Arbitration, OtherSource, arbitrate
from ngramspec.lab.replay.outcome import Outcome, Profiles, count_requests, replay, same_for_all
from ngramspec.lab.replay.player import Subject
from ngramspec.lab.replay.tally import ReplayTally

# Shows progress: takes a title and a number of steps; yields a function that advances a step.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], object]]]
Tallies = dict[str, dict[str, ReplayTally]]  # by set and peer


@contextmanager
def no_progress(title: str, total: int) -> Iterator[Callable[[], object]]:
    """Show nothing."""
    yield lambda: None


@dataclass(frozen=True)
class PeerOptions:
    """Which peers to compare with.

    places: Run those that are installed; None = run none.
    save: File to write their results to.
    record: A file of such results, for peers that do not run.
    """

    places: PeerPlaces | None = None
    save: Path | None = None
    record: Path | None = None


def replay_sets(
    traces: Sequence[Trace],
    subjects: Sequence[Subject],
    profiles: Profiles = PROFILES,
    *,
    growth: Mapping[int, Trace] | None = None,
    cold: bool = False,
    peers: PeerOptions | None = None,
    other: OtherSource | None = None,
    progress: Progress = no_progress,
) -> Replays:
    """Replay sets through all subjects and peers.

    Args:
        traces: The sets.
        subjects: Our drafters, see bench.subjects.subject.
        profiles: Costs of targets by name.
        growth: Sets by length of the context, to measure the cost of a step.
        cold: Have a fresh drafter for every request.
        peers: Which peers; None = none.
        other: A second source beside our default, known by recorded lengths; None = none.
        progress: Shows the progress.

    Raises:
        InputError: A record of peers has none of the sets, or a request no lengths of `other`.
        FormatError: A damaged record, or one of other replays.
        BackendError: A peer failed.
        OSError: A file cannot be read or written.
    """
    peers, growth = peers or PeerOptions(), growth or {}
    sets = [*traces, *growth.values()]
    beside = {} if other is None else _replay_beside(traces, other, profiles, progress)
    outcomes = _replay_ours(sets, subjects, profiles, cold, progress)
    missing: dict[str, str] = {}
    tallies: Tallies = {}
    if peers.places is not None:
        total = len(PEERS) * sum(len(trace.requests) for trace in sets)
        with progress("running the peers", total) as advance:
            runs = run_peers(sets, peers.places, cold=cold, on_request=advance)
        missing, tallies = runs.missing, runs.tallies
        if peers.save is not None:
            save_peers(peers.save, traces, tallies, profiles, cold=cold)
    if peers.record is not None:
        _add_recorded(traces, peers.record, cold, tallies)
        there = {name for trace in traces for name in tallies.get(trace.name, {})}
        missing = {name: why for name, why in missing.items() if name not in there}
    for name, row in tallies.items():
        ordered = [peer for peer in (*PEERS, ORACLE) if peer in row]
        theirs = {peer: same_for_all(row[peer], profiles) for peer in ordered}
        outcomes.setdefault(name, {}).update(theirs)
    costs: dict[str, dict[int, float]] = {}
    for context, trace in growth.items():
        for name, outcome in outcomes[trace.name].items():
            if name != ORACLE:
                costs.setdefault(name, {})[context] = outcome.first.us_per_step
    names = [subject.name for subject in subjects]
    by_set = {trace.name: outcomes[trace.name] for trace in traces}
    return Replays(profiles, names, by_set, missing, costs, cold, other, beside)


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


def _replay_ours(
    traces: Sequence[Trace],
    subjects: Sequence[Subject],
    profiles: Profiles,
    cold: bool,
    progress: Progress,
) -> dict[str, dict[str, Outcome]]:
    """Return our outcomes by set and subject."""
    with progress("replaying", count_requests(traces, subjects, profiles)) as advance:
        return {
            trace.name: {
                subject.name: replay(trace, subject, profiles, cold=cold, on_request=advance)
                for subject in subjects
            }
            for trace in traces
        }


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


def _add_recorded(traces: Sequence[Trace], path: Path, cold: bool, tallies: Tallies) -> None:
    """Add the tallies of a record where no peer ran."""
    recorded, others = load_peers(path, traces, cold=cold)
    if not recorded:
        raise InputError(f"{path} has none of these sets with these tokens: {', '.join(others)}")
    for name, row in recorded.items():
        tallies[name] = {**row, **tallies.get(name, {})}
    if others:
        print(f"{path} has no replay of the same tokens for {', '.join(others)}", file=sys.stderr)
