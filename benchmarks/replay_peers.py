"""Our drafters and other projects' on the same recorded tokens: `bench replay`, with peers.

    python benchmarks/replay_peers.py [--drafter auto --drafter auto:tree=64] [--json OUT]
    python benchmarks/replay_peers.py --run --python peers/bin/python --save RECORD

Without --run the peers' figures are those recorded in data/peers.json. Which peers there are, how
to install them and what is counted: benchmarks/README.md. Printed is each drafter's modelled
speed-up over that of the best peer of each set; the JSON has all figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ngramspec.cli.output import make_table, plain_console
from ngramspec.cli.progress import progress
from ngramspec.costs import PROFILES
from ngramspec.errors import InputError
from ngramspec.lab.recordings.traces import Cut, Trace, find_traces, load_traces
from ngramspec.lab.replay.sets import Replays, replay_sets, same_for_all
from ngramspec.lab.replay.subjects import DEFAULT, subject
from peers import ORACLE, PEERS
from peers.record import Tallies, load_peers, save_peers
from peers.runs import PeerPlaces, run_peers
from peers.versus import as_json, compare
from traces import FOLDER

RECORD = FOLDER.parent / "peers.json"


def recorded(traces: Sequence[Trace], path: Path, cold: bool) -> Tallies:
    """Return what a record has of the sets.

    Raises:
        InputError: It has none of them.
        FormatError: A damaged record, or one of other replays.
    """
    tallies, others = load_peers(path, traces, cold=cold)
    if not tallies:
        raise InputError(f"{path} has none of these sets with these tokens: {', '.join(others)}")
    if others:
        print(f"{path} has no replay of the same tokens for {', '.join(others)}", file=sys.stderr)
    return tallies


def with_peers(replays: Replays, tallies: Tallies) -> Replays:
    """Return our replays with the peers' beside them."""
    sets = {name: dict(row) for name, row in replays.sets.items()}
    for peer in (*PEERS, ORACLE):
        for name in sets.keys() & tallies.keys():
            if peer in tallies[name]:
                sets[name][peer] = same_for_all(tallies[name][peer], replays.profiles)
    return dataclasses.replace(replays, sets=sets)


def show(replays: Replays, missing: Mapping[str, str]) -> None:
    """Print a table for each of our drafters, and the peers that are missing."""
    console = plain_console()
    for drafter in replays.drafters:
        versus = compare(replays, drafter)
        title = f"{drafter}: speed-up over that of the best peer of each set"
        table = make_table(["set", *versus], title=title, text=["set"])
        for name in replays.sets:
            ratios = (row.ratios.get(name) for row in versus.values())
            table.add_row(name, *("-" if x is None else f"{x:.3f}" for x in ratios))
        means = (f"{row.mean_ratio:.3f}" for row in versus.values())
        table.add_row("geometric mean", *means, style="bold")
        shares = [row.mean_share for row in versus.values()]
        table.add_row("of the oracle's", *("-" if x is None else f"{x:.3f}" for x in shares))
        console.print(table)
    for name, reason in missing.items():
        print(f"Missing: {name}: {reason}.\n  {PEERS[name].install}", file=sys.stderr)


def main() -> None:
    """Replay, print tables, and write what is asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="*", default=[FOLDER], help="files, folders")
    parser.add_argument("--drafter", action="append", help="as bench replay takes it (repeatable)")
    parser.add_argument("--cold", action="store_true", help="a fresh drafter for every request")
    parser.add_argument("--limit", type=int, default=0, help="requests to read of each set")
    parser.add_argument("--run", action="store_true", help="run the peers that are installed")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="interpreter with peers that this one lacks (repeatable)",
    )
    parser.add_argument("--vllm-wheel", type=Path, help="vLLM's wheel or its ngram_proposer.py")
    parser.add_argument("--llamacpp", type=Path, help="llama.cpp's drafters as a replay program")
    parser.add_argument("--save", type=Path, help="record what the peers did in this file")
    parser.add_argument(
        "--record",
        type=Path,
        default=RECORD,
        help="without --run: such a record; default: data/peers.json",
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if options.save and not options.run:
        parser.error("--save is for --run")
    traces = load_traces(find_traces(options.traces), cut=Cut(options.limit))
    subjects = [subject(spec) for spec in options.drafter or DEFAULT]
    replays = replay_sets(traces, subjects, cold=options.cold, progress=progress)
    missing: dict[str, str] = {}
    if options.run:
        places = PeerPlaces(tuple(options.python), options.vllm_wheel, options.llamacpp)
        total = len(PEERS) * sum(len(trace.requests) for trace in traces)
        with progress("running the peers", total) as advance:
            runs = run_peers(traces, places, cold=options.cold, on_request=advance)
        missing, tallies = runs.missing, runs.tallies
        if options.save is not None:
            save_peers(options.save, traces, tallies, PROFILES, cold=options.cold)
    else:
        tallies = recorded(traces, options.record, options.cold)
    replays = with_peers(replays, tallies)
    show(replays, missing)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(replays, missing), indent=1) + "\n")


if __name__ == "__main__":
    main()
