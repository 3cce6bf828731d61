"""Where the time of a decoding step goes, and whether the device ever waits for drafts.

    python benchmarks/gpu/profile_steps.py                      # one GPU with 40 GB or more
    python benchmarks/gpu/profile_steps.py --trace steps.json   # and a timeline, for a trace viewer
    python benchmarks/gpu/profile_steps.py --small              # a few layers, on any machine

The replay of transformers_replay.py, step by step: what the drafter and its policy take on the
host, and, by CUDA events, how long the device works and how long it has nothing to do between two
passes. A draft begins with tokens that the pass before has chosen, so the device waits for it as it
waits for the next token itself: `idle` without drafts is that wait, and what it grows by with
drafts is what drafting costs the device. The times of prompts and of capturing graphs are left out.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ngramspec.bench.e2e.rounds import run_in_turns
from ngramspec.errors import InputError
from replay_loop import Replay, Run
from replay_modes import DEFAULT, Mode, parse_modes
from replay_options import describe, make_model, make_passes, parser, requests_for, settle
from replay_setup import RESULTS, save

LIMIT = 0.02  # of a step, for drafting
Row = dict[str, Any]


def figures(mode: Mode, rows: int, runs: list[Run]) -> Row:
    """Return medians per step, in microseconds, and the share of drafting in the time of all."""

    def median(of: list[float]) -> float:
        return 1e6 * statistics.median(of)

    steps = [seconds for run in runs for seconds in run.steps]
    draft, accept = ([s for run in runs for s in getattr(run, k)] for k in ("draft", "accept"))
    idle = [one.idle for run in runs for one in run.passes if one.idle is not None]
    return {
        "batch": rows,
        "mode": mode.name,
        "step_us": median(steps),
        "device_us": median([one.device for run in runs for one in run.passes]),
        "idle_us": median(idle) if idle else None,
        "propose_us": median(draft),
        "accept_us": median(accept),
        "propose_us_p99": 1e6 * sorted(draft)[int(0.99 * (len(draft) - 1))],
        "share": (sum(draft) + sum(accept)) / sum(steps),
        "steps": len(steps),
    }


def line(row: Row, plain: Row) -> str:
    """Return a row of the table."""
    idle = "-" if row["idle_us"] is None else f"{row['idle_us']:.0f}"
    grown = "-"
    if row["idle_us"] is not None and row is not plain:
        grown = f"{(row['idle_us'] - plain['idle_us']) / row['step_us']:.2%}"
    return (
        f"{row['batch']:>5} {row['mode']:<28} {row['step_us']:>9.0f} {row['device_us']:>9.0f} "
        f"{idle:>8} {grown:>8} {row['propose_us']:>8.1f} {row['accept_us']:>8.1f} "
        f"{row['propose_us_p99']:>8.1f} {row['share']:>7.2%} "
        f"{'under' if row['share'] < LIMIT else 'over'} {LIMIT:.0%}"
    )


def timeline(replay: Replay, passes: Any, mode: Mode, policy: Any, steps: int, path: Path) -> None:
    """Write what host and device do in some steps, for chrome://tracing or Perfetto."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if passes.on_cuda:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as made:
        replay.run(mode, policy, steps)
        passes.synchronize()
    made.export_chrome_trace(str(path))
    print(f"{steps} steps of {mode.name} in {path}")


def marker() -> Callable[[str], AbstractContextManager[Any]]:
    """Return what marks spans for a profiler."""
    from torch.profiler import record_function

    def mark(name: str) -> AbstractContextManager[Any]:
        return record_function(name)

    return mark


def measure(
    replay: Replay, policies: dict[Mode, Any], rounds: int, most: int, rows: int
) -> dict[Mode, list[Run]]:
    """Return the runs of every mode, after one each to warm up."""

    def run(mode: Mode) -> Run:
        print(f"batch {rows}: {mode.name}", file=sys.stderr, flush=True)
        return replay.run(mode, policies[mode], most)

    made = run_in_turns(list(policies), rounds + 1, run)[1:]
    return {mode: [found[mode] for found in made] for mode in policies}


def main() -> None:
    """Measure, print, save."""
    options = parser(__doc__ or "")
    options.add_argument("--modes", nargs="+", default=list(DEFAULT[1:3]), help="DRAFTER:POLICY")
    options.add_argument("--steps", type=int, help="at most so many per run (all; --trace: 40)")
    options.add_argument("--trace", type=Path, help="a timeline of the first mode with drafts")
    options = options.parse_args()
    settle(options)
    path = options.json or (None if options.small else RESULTS / "profile_steps.json")
    try:
        modes = parse_modes(options.modes)
        texts = {rows: requests_for(options, rows) for rows in options.batch}
    except InputError as error:
        raise SystemExit(str(error)) from None
    body: Row = {"what": "replay, by steps", "setup": describe(options), "rows": []}
    model = make_model(options)
    most = options.steps or 1 << 30
    print(
        f"{'batch':>5} {'mode':<28} {'step us':>9} {'device':>9} {'idle':>8} {'grown':>8} "
        f"{'propose':>8} {'accept':>8} {'p99':>8} {'share':>7}"
    )
    for rows in options.batch:
        passes = make_passes(model, options, rows)
        replay = Replay(passes, texts[rows], rows, options.max_draft)
        policies = {mode: mode.make_policy(options.max_draft) for mode in modes}
        runs = measure(replay, policies, options.rounds, most, rows)
        found = [figures(mode, rows, runs[mode]) for mode in modes]
        for row in found:
            print(line(row, found[0]), flush=True)
        body["rows"] += found
        if options.trace:
            trace = options.trace.with_stem(f"{options.trace.stem}-{rows}")
            steps = options.steps or 40
            marked = (passes, texts[rows], rows, options.max_draft, marker())
            drafting = modes[:2][-1]
            timeline(Replay(*marked), passes, drafting, policies[drafting], steps, trace)
            del marked
        if path:
            save({**body, "graphs": passes.graphs, "graph_error": passes.graph_error}, path)
        del passes, replay
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()
