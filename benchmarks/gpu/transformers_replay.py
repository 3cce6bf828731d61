"""Replay recorded requests on a random-weight 8B Llama, with drafts and without.

    python benchmarks/gpu/transformers_replay.py                # one GPU with 40 GB or more
    python benchmarks/gpu/transformers_replay.py --small        # a few layers, on any machine

A replay: every pass is computed in full, bf16, over the newest token of each text and its draft,
and takes the time it takes; which tokens of a draft are right comes from recorded texts, because a
model of random weights says nothing worth drafting for. Batches 1, 8 and 32; drafts fixed, gated
and chosen by AutoPolicy, which learns from the measured times, as chains and as trees. Modes take
turns, each starts every round with a fresh drafter and keeps its policy, as in a server that has
been running; a first round warms up. Batch sizes take turns by rounds, and results are saved after
each; --minutes ends it in time. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ngramspec.errors import InputError
from packed_llama import TREE_TOKENS
from packed_passes import CaptureError
from replay_batch import Batch, facts_of
from replay_loop import Run
from replay_modes import DEFAULT, Mode, parse_modes
from replay_options import describe_replay, make_model, replay_parser, requests_for, settle
from replay_rounds import Budget, Rounds, run_rounds, state_of
from replay_setup import RESULTS, save

Row = dict[str, Any]


def row_of(mode: Mode, runs: Sequence[Run], plain: Sequence[Run], rows: int) -> Row:
    """Return the figures of a mode."""
    ratios = [run.rate / other.rate for run, other in zip(runs, plain, strict=True)]
    rates = [run.rate for run in runs]
    steps = [seconds for run in runs for seconds in run.steps]
    device = [one.device for run in runs for one in run.passes if one.device is not None]
    spent = sum(sum(run.draft) + sum(run.accept) for run in runs)
    emitted, row_steps = (sum(getattr(run, k) for run in runs) for k in ("emitted", "row_steps"))
    drafted, accepted = (sum(getattr(run, k) for run in runs) for k in ("drafted", "accepted"))
    return {
        "batch": rows,
        "mode": mode.name,
        "tokens_per_second": statistics.median(rates),
        "tokens_per_second_of_rounds": rates,
        "ratio_to_none": statistics.median(ratios),
        "ratio_of_rounds": ratios,
        "mean_accepted_length": emitted / row_steps,
        "drafted_per_row_step": drafted / row_steps,
        "accepted_of_drafted": accepted / drafted if drafted else None,
        "step_ms": 1e3 * statistics.median(steps),
        "device_ms": 1e3 * statistics.median(device) if device else None,
        "harness_us_per_step": 1e6 * sum(sum(run.harness) for run in runs) / len(steps),
        "drafting_us_per_step": 1e6 * spent / len(steps),
        "drafting_share_of_time": spent / sum(run.seconds for run in runs),
        "steps": len(steps),
        "tokens": emitted,
    }


def table(rows: Sequence[Row]) -> str:
    """Return the figures as text."""
    lines = [
        f"{'batch':>5} {'mode':<28} {'tokens/s':>9} {'ratio':>6} {'low':>6} {'high':>6} "
        f"{'mean':>6} {'drafted':>8} {'step ms':>8} {'device':>8} {'draft us':>9} {'share':>7}"
    ]
    for row in rows:
        low, high = min(row["ratio_of_rounds"]), max(row["ratio_of_rounds"])
        device = "-" if row["device_ms"] is None else f"{row['device_ms']:.2f}"
        lines.append(
            f"{row['batch']:>5} {row['mode']:<28} {row['tokens_per_second']:>9.0f} "
            f"{row['ratio_to_none']:>6.2f} {low:>6.2f} {high:>6.2f} "
            f"{row['mean_accepted_length']:>6.2f} {row['drafted_per_row_step']:>8.2f} "
            f"{row['step_ms']:>8.2f} {device:>8} "
            f"{row['drafting_us_per_step']:>9.1f} {row['drafting_share_of_time']:>7.2%}"
            f"{' warm-up only' if row['warm_up_only'] else ''}"
        )
    return "\n".join(lines)


def default_path(small: bool) -> Path | None:
    """Return where results go; small runs are not worth keeping unless one says so."""
    return None if small else RESULTS / "transformers_replay.json"


def rows_of(rounds: Rounds[Mode, Run], modes: Sequence[Mode], batch: int) -> list[Row]:
    """Return the figures of a batch size, none before its first round."""
    if not rounds.done:
        return []
    plain = rounds.of(modes[0])
    rows = [row_of(mode, rounds.of(mode), plain, batch) for mode in modes]
    return [{**row, "warm_up_only": rounds.warm_up_only} for row in rows]


def parse() -> argparse.Namespace:
    """Return the options."""
    cli = replay_parser(__doc__ or "")
    modes = [*DEFAULT, "suffix:tree-8"]
    cli.add_argument("--modes", nargs="+", default=modes, help="DRAFTER:POLICY")
    return cli.parse_args()


def main() -> None:
    """Measure, save after each round, print."""
    options = parse()
    budget = Budget(options.minutes)
    settle(options)
    path = options.json or default_path(options.small)
    try:
        modes = parse_modes(options.modes)
        if any(mode.tree_width for mode in modes) and options.max_draft >= TREE_TOKENS:
            raise InputError(f"--max-draft must be below {TREE_TOKENS} for --modes with :tree-N")
        texts = {rows: requests_for(options, rows) for rows in options.batch}
    except InputError as error:
        raise SystemExit(str(error)) from None
    setup = describe_replay(options)
    model = make_model(options)
    batches = [Batch(model, options, rows, texts[rows], modes) for rows in options.batch]
    body: Row = {"what": "replay", "setup": setup}

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
    print(table(body["rows"]), flush=True)
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()
