"""The longest single call on a slot that grows to a million tokens, per drafter.

Workload: the recorded requests one after the other, again and again with other token ids, on one
slot. Each step proposes up to 16 tokens and accepts the right ones and one more, so tables grow
while they are used. Each run does the same calls; per call the least time of all runs counts, so
that what the machine did in between is left out; `all runs` shows the longest call with it.

    python benchmarks/pauses.py [--tokens 1000000] [--runs 3] [--drafter NAME]... [--json OUT]
    python benchmarks/pauses.py --baseline CHECKOUT  # beside another build, runs alternating
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec import DRAFTER_NAMES, NgramCache, create_drafter
from ngramspec.drafting.names import FROM_LOGITS
from traces import requests_of, trace_names

DYNAMIC = "ngram-cache, dynamic"
# Recorded text has no logits, without which those left out draft nothing.
NAMES = [*(name for name in DRAFTER_NAMES if name not in FROM_LOGITS), DYNAMIC]
CALLS = ("propose", "accept")
QUANTILES = {"p50": 50, "p99": 99, "p99.9": 99.9, "max": 100}
MAX_DRAFT = 16
VOCABULARY = 152_000
Times = npt.NDArray[np.int64]


def recorded_text(num_tokens: int) -> npt.NDArray[np.int32]:
    """Return so many tokens of recorded text; where it comes again, it has other ids."""
    requests = [request for name in trace_names() for request in requests_of(name)]
    text = np.concatenate([part for one in requests for part in (one.prompt, one.output)])
    rounds = -(-num_tokens // len(text))
    shifted = [(text + 1009 * i) % VOCABULARY for i in range(rounds)]
    return np.concatenate(shifted)[:num_tokens].astype(np.int32)


def grow(name: str, text: npt.NDArray[np.int32]) -> dict[str, Times]:
    """Return wall and thread-CPU time in ns per call, in order of the calls."""
    options = {"dynamic": NgramCache()} if name == DYNAMIC else {}
    drafter = create_drafter(name.partition(",")[0], **options)
    times: dict[str, list[int]] = {f"{call} {clock}": [] for call in CALLS for clock in CLOCKS}
    drafter.begin(0, text[:1])
    at = 1
    while at < len(text):
        draft = timed(times, "propose", lambda: drafter.propose(0, MAX_DRAFT))
        room = min(len(draft), len(text) - at - 1)
        wrong = np.flatnonzero(draft[:room] != text[at : at + room])
        right = int(wrong[0]) if len(wrong) else room
        tokens = text[at : at + right + 1]
        timed(times, "accept", lambda t=tokens, r=right: drafter.accept(0, t, r))
        at += right + 1
    times["end wall"], times["end CPU"] = [], []
    timed(times, "end", lambda: drafter.end(0))
    return {key: np.array(values, np.int64) for key, values in times.items()}


CLOCKS = {"wall": time.perf_counter_ns, "CPU": time.thread_time_ns}


def timed(times: dict[str, list[int]], call: str, run: Any) -> Any:
    """Run a call and note how long it took on both clocks."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    result = run()
    wall, cpu = time.perf_counter_ns() - wall, time.thread_time_ns() - cpu
    times[f"{call} wall"].append(wall)
    times[f"{call} CPU"].append(cpu)
    return result


def figures(runs: list[dict[str, Times]]) -> dict[str, dict[str, float]]:
    """Return quantiles in us of the least time per call, and the longest call of all runs."""
    rows = {}
    for key in runs[0]:
        if len({len(run[key]) for run in runs}) != 1:
            raise SystemExit(f"{key}: the runs made different numbers of calls")
        least = np.min([run[key] for run in runs], axis=0)
        rows[key] = {q: float(np.percentile(least, at)) / 1e3 for q, at in QUANTILES.items()}
        rows[key]["all runs"] = float(max(run[key].max() for run in runs)) / 1e3
        rows[key]["calls"] = len(least)
    return rows


def one_run(name: str, num_tokens: int, checkout: Path | None) -> dict[str, Times]:
    """Run the calls in a process of their own, so that each finds memory in the same state."""
    folder = (checkout or Path(__file__).parents[1]).resolve()
    command = [sys.executable, __file__, "--tokens", str(num_tokens), "--raw", name]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=folder)
    return {key: np.array(values, np.int64) for key, values in json.loads(out.stdout).items()}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--drafter", action="append", choices=NAMES, help="default: all")
    parser.add_argument("--baseline", type=Path, metavar="CHECKOUT", help="another build, in place")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--raw", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.raw:
        times = grow(options.raw, recorded_text(options.tokens))
        json.dump({key: values.tolist() for key, values in times.items()}, sys.stdout)
        return
    builds = {"this": None, **({"baseline": options.baseline} if options.baseline else {})}
    columns = [*QUANTILES, "all runs"]
    print(f"{'us':22}{'build':9}{'call':14}" + "".join(f"{column:>10}" for column in columns))
    result: dict[str, Any] = {}
    for name in options.drafter or NAMES:
        runs: dict[str, list[dict[str, Times]]] = {build: [] for build in builds}
        for _ in range(options.runs):
            for build, checkout in builds.items():
                runs[build].append(one_run(name, options.tokens, checkout))
        result[name] = {build: figures(runs[build]) for build in builds}
        for build, rows in result[name].items():
            for call, row in rows.items():
                cells = "".join(f"{row[column]:10.1f}" for column in columns)
                print(f"{name:22}{build:9}{call:14}{cells}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
