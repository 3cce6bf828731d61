"""Peers in an interpreter of their own: a job in JSON on stdin, lines of JSON on stdout.

Run by its path. ngramspec's __init__ is not imported, as it needs what that interpreter may not
have: compiled modules for its version, click, rich.

Job: {"peers": [NAME], "sets": [[NAME, FILE of token lines]], "cold": bool, "vllm_wheel": FILE}.
Lines: {"missing": {NAME: reason}} first, then {"request": 1} after each request, and
{"peer": NAME, "set": NAME, "tally": {...}}.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any


def find_modules() -> None:
    """Make this package importable, and ngramspec's pure Python modules without its __init__."""
    benchmarks = Path(__file__).resolve().parents[1]
    sys.path[0] = str(benchmarks)
    package = types.ModuleType("ngramspec")
    package.__path__ = [str(benchmarks.parent / "ngramspec")]
    sys.modules["ngramspec"] = package


def main() -> None:
    """Do the job."""
    job = json.load(sys.stdin)
    lines = sys.stdout
    sys.stdout = sys.stderr  # peers may print

    def say(**line: Any) -> None:
        print(json.dumps(line), file=lines, flush=True)

    run(job, say)


def run(job: dict[str, Any], say: Any) -> None:
    """Replay every set through every peer that is installed."""
    import dataclasses

    from ngramspec.costs import PROFILES
    from ngramspec.lab.recordings.lines import read_token_line
    from ngramspec.lab.replay.walk import walk
    from peers import PEERS, PeerMissing, open_peer

    subjects, missing = {}, {}
    wheel = job.get("vllm_wheel")
    for name in job["peers"]:
        try:
            subjects[name] = open_peer(PEERS[name], vllm_wheel=Path(wheel) if wheel else None)
        except PeerMissing as error:
            missing[name] = str(error)
    say(missing=missing)
    any_costs = next(iter(PROFILES.values()))  # peers ignore costs
    for set_name, file in job["sets"]:
        with open(file, encoding="ascii") as lines:
            requests = [read_token_line(line) for line in lines]
        for name, subject in subjects.items():
            tally = walk(
                lambda subject=subject: subject.open(any_costs),  # type: ignore[misc]
                requests,
                cold=job["cold"],
                on_request=lambda: say(request=1),
            )
            say(peer=name, set=set_name, tally=dataclasses.asdict(tally))


if __name__ == "__main__":
    find_modules()
    main()
