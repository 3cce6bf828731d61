"""The work of `ngramspec bench replay`: reading, replaying ours and the peers, with progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.bench import ours
from ngramspec.bench.growth import growth_traces
from ngramspec.bench.outcome import Outcome, Profiles, count_requests, replay, same_for_all
from ngramspec.bench.peer_runs import PeerPlaces, run_peers
from ngramspec.bench.peers import ORACLE, PEERS
from ngramspec.bench.recorded import load_peers, save_peers
from ngramspec.bench.summary import Replays
from ngramspec.bench.traces import Cut, Trace
from ngramspec.cli.progress import progress
from ngramspec.cli.trace_files import read_traces
from ngramspec.costs import PROFILES, load_costs
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.bench.player import Subject
    from ngramspec.bench.tally import Tally

Note = Callable[[str], object]


@dataclass(frozen=True)
class Plan:
    """What the options ask for.

    growth: sets by length of the context; empty when that is not asked for.
    """

    traces: Sequence[Trace]
    subjects: Sequence[Subject]
    profiles: Profiles
    growth: dict[int, Trace]
    cold: bool


def run_replays(options: dict[str, Any]) -> Replays:
    """Do what the options of the command say.

    Raises:
        InputError: A drafter, a trace or a profile that is not possible.
        FormatError: A damaged file, or a record of peers from other replays.
        BackendError: A tokenizer or a peer failed.
        OSError: A file cannot be read or written.
    """
    profiles = _profiles(options["costs"])
    subjects = [ours.subject(spec) for spec in dict.fromkeys(options["drafters"] or ours.DEFAULT)]
    traces = _read(options)
    growth = growth_traces() if options["growth"] else {}
    plan = Plan(traces, subjects, profiles, growth, options["cold"])
    made = _replay_ours(plan)
    missing: dict[str, str] = {}
    tallies: dict[str, dict[str, Tally]] = {}
    if options["peers"]:
        missing, tallies = _run_peers(plan, options)
    if options["peers_from"] is not None:
        _add_recorded(plan, options["peers_from"], tallies)
        missing = {name: why for name, why in missing.items() if not _has(tallies, plan, name)}
    for name, row in tallies.items():
        ordered = [peer for peer in (*PEERS, ORACLE) if peer in row]
        outcomes = {peer: same_for_all(row[peer], profiles) for peer in ordered}
        made.setdefault(name, {}).update(outcomes)
    costs = _growth(plan, made)
    sets = {trace.name: made[trace.name] for trace in traces}
    names = [subject.name for subject in subjects]
    return Replays(profiles, names, sets, missing, costs, plan.cold)


def _profiles(files: Sequence[Path]) -> Profiles:
    profiles = dict(PROFILES)
    for path in files:
        table = load_costs(path)
        name = table.name or path.stem
        if name in profiles:
            raise InputError(f"{path}: there is a profile of the name {name!r} already")
        profiles[name] = table
    return profiles


def _read(options: dict[str, Any]) -> list[Trace]:
    cut = Cut(options["limit"] or 0, options["max_prompt"], options["max_output"])
    return read_traces(options["traces"], options["tokenizer"], cut)


def _replay_ours(plan: Plan) -> dict[str, dict[str, Outcome]]:
    """Return our outcomes by set and subject, those of the growth sets too."""
    traces = [*plan.traces, *plan.growth.values()]
    made: dict[str, dict[str, Outcome]] = {}
    total = count_requests(traces, plan.subjects, plan.profiles)
    with progress("replaying", total) as advance:
        for trace in traces:
            made[trace.name] = {
                subject.name: replay(
                    trace, subject, plan.profiles, cold=plan.cold, on_request=advance
                )
                for subject in plan.subjects
            }
    return made


def _run_peers(
    plan: Plan, options: dict[str, Any]
) -> tuple[dict[str, str], dict[str, dict[str, Tally]]]:
    """Return what is missing, and the tallies by set and peer."""
    places = PeerPlaces(options["pythons"], options["vllm_wheel"], options["llamacpp"])
    traces = [*plan.traces, *plan.growth.values()]
    total = len(PEERS) * sum(len(trace.requests) for trace in traces)
    with progress("running the peers", total) as advance:
        runs = run_peers(traces, places, cold=plan.cold, on_request=advance)
    if options["save_peers"] is not None:
        save_peers(options["save_peers"], plan.traces, runs.tallies, plan.profiles, cold=plan.cold)
    return runs.missing, runs.tallies


def _add_recorded(plan: Plan, path: Path, tallies: dict[str, dict[str, Tally]]) -> None:
    found, others = load_peers(path, plan.traces, cold=plan.cold)
    if not found:
        raise InputError(f"{path} has none of these sets with these tokens: {', '.join(others)}")
    for name, row in found.items():
        tallies[name] = {**row, **tallies.get(name, {})}
    if others:
        print(f"{path} does not have these tokens of {', '.join(others)}", file=sys.stderr)


def _has(tallies: dict[str, dict[str, Tally]], plan: Plan, peer: str) -> bool:
    return any(peer in tallies.get(trace.name, {}) for trace in plan.traces)


def _growth(plan: Plan, made: dict[str, dict[str, Outcome]]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for context, trace in plan.growth.items():
        for name, outcome in made[trace.name].items():
            if name != ORACLE:
                found.setdefault(name, {})[context] = outcome.first.us_per_step
    return found
