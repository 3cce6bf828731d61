"""Drafting time per output token, ours beside llama.cpp's compiled drafters in the same run.

Both replay the same recorded requests in file order on one slot, knowledge kept, and both time
their begin, draft and accept calls from outside. Runs alternate; figures are medians.

    python benchmarks/native_replay.py --llamacpp PATH_OF_REPLAY_PROGRAM [--json OUT]

benchmarks/README.md says what the replay program must read and print. Without --llamacpp its
columns are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from ngramspec import DRAFTER_NAMES, create_drafter
from ngramspec.drafting.names import FROM_LOGITS
from ngramspec.lab.recordings import RecordedRequest
from traces import requests_of, trace_names, trace_text

DEMANDING = ("agentic.tau2_tools", "agentic.tau_airline_4trials", "code_edit.aider_swebench")

KINDS = [name for name in DRAFTER_NAMES if name not in FROM_LOGITS]  # recorded requests have none
OURS_ALONE = ("suffix",)  # llama.cpp has none of them


def run_ours(kind: str, requests: list[RecordedRequest]) -> dict[str, float]:
    """Replay natively; return us per output token and the mean accepted length."""
    drafter = create_drafter(kind)
    replays = [drafter.replay(request.prompt, request.output) for request in requests]
    steps = sum(replay.steps for replay in replays)
    tokens = steps + sum(replay.accepted for replay in replays)
    spent = sum(replay.begin_ns + replay.step_ns for replay in replays)
    return {
        "us_per_token": spent / 1e3 / tokens,
        "begin_us_per_token": sum(replay.begin_ns for replay in replays) / 1e3 / tokens,
        "mean_accepted_length": tokens / steps,
    }


def run_theirs(program: str, kind: str, text: bytes) -> dict[str, float]:
    """Replay through llama.cpp's drafter; the same figures."""
    done = subprocess.run(
        [program, kind, "1", "quiet=1"], input=text, capture_output=True, check=True, env=os.environ
    )
    summary = json.loads(next(line for line in done.stderr.splitlines() if line.startswith(b"{")))
    spent = (
        summary["begin_us_per_session"] * summary["sessions"]
        + summary["draft_us_per_step"] * summary["steps"]
        + summary["accept_us_per_draft"] * summary["drafts"]
    )
    return {
        "us_per_token": spent / summary["tokens"],
        "mean_accepted_length": summary["tokens"] / summary["steps"],
    }


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def measure(
    kinds: list[str], names: list[str], program: str | None, repeats: int
) -> dict[str, Any]:
    """Run every set with every drafter, ours and theirs in turn."""
    sets: dict[str, Any] = {}
    for name in names:
        text, requests = trace_text(name), requests_of(name)
        sets[name] = {}
        for kind in kinds:
            ours, theirs = [], []
            for _ in range(repeats):
                ours.append(run_ours(kind, requests))
                if program and kind not in OURS_ALONE:
                    theirs.append(run_theirs(program, kind, text))
            row: dict[str, Any] = {"ours": medians(ours)}
            if theirs:
                row["theirs"] = medians(theirs)
                row["ratio"] = row["ours"]["us_per_token"] / row["theirs"]["us_per_token"]
            sets[name][kind] = row
            print(format_row(name, kind, row), flush=True)
    both = [kind for kind in kinds if kind not in OURS_ALONE]
    return {"sets": sets, "geometric_mean_ratio": ratios(sets, both) if program else None}


def ratios(sets: dict[str, Any], kinds: list[str]) -> dict[str, dict[str, float]]:
    """Return the geometric mean of the time ratios per drafter: all sets, and the demanding."""

    def mean(kind: str, names: list[str]) -> float:
        logs = [math.log(sets[name][kind]["ratio"]) for name in names]
        return math.exp(sum(logs) / len(logs)) if logs else float("nan")

    demanding = [name for name in DEMANDING if name in sets]
    return {k: {"all": mean(k, list(sets)), "long prompts": mean(k, demanding)} for k in kinds}


def format_row(name: str, kind: str, row: dict[str, Any]) -> str:
    """Return one line of the table."""
    ours = row["ours"]
    line = f"{name:30} {kind:14} {cells(ours)}"
    if "theirs" in row:
        line += f" | llama.cpp {cells(row['theirs'])} | ratio {row['ratio']:.3f}"
    return line


def cells(figures: dict[str, float]) -> str:
    """Return time and mean accepted length."""
    return f"{figures['us_per_token']:7.3f} us  MAT {figures['mean_accepted_length']:.3f}"


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--llamacpp", metavar="PROGRAM", help="llama.cpp's drafters as a replay program"
    )
    parser.add_argument("--drafter", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--set", action="append", choices=trace_names(), help="default: all sets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    kinds = options.drafter or KINDS
    result = measure(kinds, options.set or trace_names(), options.llamacpp, options.repeats)
    for kind, mean in (result["geometric_mean_ratio"] or {}).items():
        print(
            f"{kind:14} time ratio, geometric mean: all sets {mean['all']:.3f}, "
            f"long prompts {mean['long prompts']:.3f}"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
