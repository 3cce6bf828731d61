"""Where the time of a decoding step goes, and whether the device ever waits for drafts.

    python benchmarks/gpu/profile_steps.py                         # one GPU with 40 GB or more
    python benchmarks/gpu/profile_steps.py --trace steps.json.gz   # and a timeline, for Perfetto
    python benchmarks/gpu/profile_steps.py --small                 # a few layers, on any machine

The replay of transformers_replay.py, step by step: what the drafter and its policy take on the
host, and, by CUDA events where passes are graphs, how long a pass takes the device and how long it
has nothing to do between two passes. A draft begins with tokens that the pass before has chosen, so
the device waits for it as it waits for the next token itself: `idle` without drafts is that wait,
and what it grows by with drafts is what drafting costs the device. The times of prompts and of
capturing graphs are left out. README.md says what each column is.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from messages import say
from ngramspec.errors import InputError
from packed_passes import CaptureError
from replay_batch import Batch, facts_of
from replay_loop import Replay, Run
from replay_modes import DEFAULT, Mode, parse_modes
from replay_options import describe_replay, make_model, replay_parser, requests_for, settle
from replay_rounds import Budget, Rounds, run_rounds, state_of
from replay_setup import RESULTS, save

LIMIT = 0.02  # of a step, for drafting
TRACED = 40  # steps
Row = dict[str, Any]


def figures(mode: Mode, rows: int, runs: list[Run]) -> Row:
    """Return medians per step, in microseconds, and the share of drafting in the time of all."""

    def median(of: list[float]) -> float | None:
        return 1e6 * statistics.median(of) if of else None

    steps, draft, accept, harness = (
        [seconds for run in runs for seconds in getattr(run, name)]
        for name in ("steps", "draft", "accept", "harness")
    )
    passes = [one for run in runs for one in run.passes]
    return {
        "batch": rows,
        "mode": mode.name,
        "step_us": median(steps),
        "device_us": median([one.device for one in passes if one.device is not None]),
        "idle_us": median([one.idle for one in passes if one.idle is not None]),
        "moving_us": 1e6 * statistics.mean(one.moving for one in passes),
        "harness_us": median(harness),
        "propose_us": median(draft),
        "accept_us": median(accept),
        "propose_us_p99": 1e6 * sorted(draft)[int(0.99 * (len(draft) - 1))],
        "share": (sum(draft) + sum(accept)) / sum(steps),
        "steps": len(steps),
    }


def line(row: Row, plain: Row) -> str:
    """Return a row of the table."""
    device, idle = (
        "-" if row[name] is None else f"{row[name]:.0f}" for name in ("device_us", "idle_us")
    )
    grown = "-"
    if row["idle_us"] is not None and plain["idle_us"] is not None and row is not plain:
        grown = f"{(row['idle_us'] - plain['idle_us']) / row['step_us']:.2%}"
    return (
        f"{row['batch']:>5} {row['mode']:<28} {row['step_us']:>9.0f} {device:>9} "
        f"{idle:>8} {grown:>8} {row['moving_us']:>7.1f} {row['harness_us']:>8.1f} "
        f"{row['propose_us']:>8.1f} {row['accept_us']:>8.1f} "
        f"{row['propose_us_p99']:>8.1f} {row['share']:>7.2%} "
        f"{'under' if row['share'] < LIMIT else 'over'} {LIMIT:.0%}"
        f"{', warm-up only' if row['warm_up_only'] else ''}"
    )


def timeline(batch: Batch, mode: Mode, options: argparse.Namespace) -> None:
    """Write what host and device do in some steps, for chrome://tracing or Perfetto.

    What puts the first prompts into the cache is before it.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if batch.passes.on_cuda:
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    replay = Replay(batch.passes, batch.texts, batch.rows, options.max_draft, marker())
    steps = options.steps or TRACED
    run = replay.run(mode, batch.policies[mode], steps, ready=profiler.start)
    batch.passes.synchronize()
    profiler.stop()
    profiler.export_chrome_trace(str(options.trace))
    print(f"{len(run.steps)} steps of {mode.name}, {batch.name}, in {options.trace}")


def marker() -> Callable[[str], AbstractContextManager[Any]]:
    """Return what marks spans for a profiler."""
    from torch.profiler import record_function

    def mark(name: str) -> AbstractContextManager[Any]:
        return record_function(name)

    return mark


def rows_of(rounds: Rounds[Mode, Run], modes: Sequence[Mode], batch: int) -> list[Row]:
    """Return the figures of a batch size, none before its first round."""
    if not rounds.done:
        return []
    rows = [figures(mode, batch, rounds.of(mode)) for mode in modes]
    return [{**row, "warm_up_only": rounds.warm_up_only} for row in rows]


def parse() -> argparse.Namespace:
    """Return the settled options."""
    cli = replay_parser(__doc__ or "")
    cli.add_argument("--modes", nargs="+", default=list(DEFAULT[1:3]), help="DRAFTER:POLICY")
    cli.add_argument("--steps", type=int, help=f"at most so many per run (all; --trace: {TRACED})")
    cli.add_argument(
        "--trace", type=Path, help="FILE.json.gz: the first mode with drafts, smallest batch"
    )
    options = cli.parse_args()
    if options.trace and not options.trace.name.endswith(".json.gz"):
        cli.error(f"--trace must end with .json.gz, got {options.trace}")
    if options.steps is not None and options.steps < 1:
        cli.error("--steps must be 1 or more")
    return options


def main() -> None:
    """Measure, save after each round, print."""
    options = parse()
    budget = Budget(options.minutes)
    settle(options)
    path = options.json or (None if options.small else RESULTS / "profile_steps.json")
    try:
        modes = parse_modes(options.modes)
        texts = {rows: requests_for(options, rows) for rows in options.batch}
    except InputError as error:
        raise SystemExit(str(error)) from None
    body: Row = {"what": "replay, by steps", "setup": describe_replay(options)}
    model = make_model(options)
    most = options.steps or 1 << 30
    batches = [Batch(model, options, rows, texts[rows], modes, most) for rows in options.batch]

    def keep(series: Sequence[Rounds[Mode, Run]]) -> None:
        body.update(state_of(series, options.rounds))
        body["passes"] = {str(batch.rows): facts_of(batch.passes) for batch in batches}
        each = zip(series, batches, strict=True)
        body["rows"] = [row for one, batch in each for row in rows_of(one, modes, batch.rows)]
        if path:
            save(body, path)

    run_rounds(
        *(batches, modes, options.rounds, budget, keep),
        again=(CaptureError,),
        never=(torch.OutOfMemoryError,),
    )
    print(
        f"{'batch':>5} {'mode':<28} {'step us':>9} {'device':>9} {'idle':>8} {'grown':>8} "
        f"{'moving':>7} {'harness':>8} {'propose':>8} {'accept':>8} {'p99':>8} {'share':>7}"
    )
    plain = {row["batch"]: row for row in body["rows"] if row["mode"] == modes[0].name}
    for row in body["rows"]:
        print(line(row, plain[row["batch"]]), flush=True)
    if options.trace and budget.left <= 0:
        say("no time for a trace")
    elif options.trace:
        smallest = min(batches, key=lambda batch: batch.rows)
        timeline(smallest, modes[:2][-1], options)
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()
