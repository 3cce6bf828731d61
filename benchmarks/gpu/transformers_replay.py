"""Replay recorded requests on a random-weight 8B Llama, with drafts and without.

    python benchmarks/gpu/transformers_replay.py                # one GPU with 40 GB or more
    python benchmarks/gpu/transformers_replay.py --small        # a few layers, on any machine

A replay: every pass is computed in full, bf16, over the newest token of each text and its draft,
and takes the time it takes; which tokens of a draft are right comes from recorded texts, because a
model of random weights says nothing worth drafting for. Batches 1, 8 and 32; drafts fixed, gated
and chosen by AutoPolicy, which learns from the measured times, as chains and as trees. Modes take
turns, each starts every round with a fresh drafter and keeps its policy, as in a server that has
been running; a first round warms up. Figures are medians over the rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ngramspec.bench.e2e.rounds import run_in_turns
from ngramspec.errors import InputError
from packed_llama import TREE_TOKENS
from packed_passes import Passes
from replay_loop import Replay, Run
from replay_modes import DEFAULT, Mode, parse_modes
from replay_options import describe, make_model, make_passes, parser, requests_for, settle
from replay_setup import RESULTS, save

Row = dict[str, Any]


def measure(
    replay: Replay, modes: Sequence[Mode], max_draft: int, rounds: int, say: Callable[[str], None]
) -> dict[Mode, list[Run]]:
    """Return the runs of every mode, in the rounds' order."""
    policies = {mode: mode.make_policy(max_draft) for mode in modes}
    done = 0

    def run(mode: Mode) -> Run:
        nonlocal done
        done += 1
        made = replay.run(mode, policies[mode])
        say(f"{done}/{len(modes) * (rounds + 1)} {mode.name} {made.rate:.0f} tokens/s")
        return made

    made = run_in_turns(modes, rounds + 1, run)[1:]
    return {mode: [found[mode] for found in made] for mode in modes}


def row_of(mode: Mode, runs: Sequence[Run], plain: Sequence[Run], rows: int) -> Row:
    """Return the figures of a mode."""
    ratios = [run.rate / other.rate for run, other in zip(runs, plain, strict=True)]
    rates = [run.rate for run in runs]
    steps = [seconds for run in runs for seconds in run.steps]
    device = [one.device for run in runs for one in run.passes]
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
        "device_ms": 1e3 * statistics.median(device),
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
        lines.append(
            f"{row['batch']:>5} {row['mode']:<28} {row['tokens_per_second']:>9.0f} "
            f"{row['ratio_to_none']:>6.2f} {low:>6.2f} {high:>6.2f} "
            f"{row['mean_accepted_length']:>6.2f} {row['drafted_per_row_step']:>8.2f} "
            f"{row['step_ms']:>8.2f} {row['device_ms']:>8.2f} "
            f"{row['drafting_us_per_step']:>9.1f} {row['drafting_share_of_time']:>7.2%}"
        )
    return "\n".join(lines)


def pass_facts(passes: Passes) -> Row:
    """Return how passes ran, and how many of each size."""
    return {
        "graphs": passes.graphs,
        "graph_error": passes.graph_error,
        "capture_seconds": passes.capture_seconds,
        "sizes": [[*size, count] for size, count in sorted(passes.sizes.items())],
    }


def default_path(small: bool) -> Path | None:
    """Return where results go; small runs are not worth keeping unless one says so."""
    return None if small else RESULTS / "transformers_replay.json"


def main() -> None:
    """Measure, print, save after each batch size."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--modes", nargs="+", default=[*DEFAULT, "suffix:tree-8"], help="DRAFTER:POLICY"
    )
    options = options.parse_args()
    settle(options)
    path = options.json or default_path(options.small)
    try:
        modes = parse_modes(options.modes)
        if any(mode.tree_width for mode in modes) and options.max_draft >= TREE_TOKENS:
            raise InputError(f"--max-draft must be below {TREE_TOKENS} for --modes with :tree-N")
        texts = {rows: requests_for(options, rows) for rows in options.batch}
    except InputError as error:
        raise SystemExit(str(error)) from None
    body: Row = {"what": "replay", "setup": describe(options), "passes": {}, "rows": []}
    model = make_model(options)
    for rows in options.batch:
        passes = make_passes(model, options, rows)
        replay = Replay(passes, texts[rows], rows, options.max_draft)

        def say(text: str, rows: int = rows) -> None:
            print(f"batch {rows}: {text}", file=sys.stderr, flush=True)

        runs = measure(replay, modes, options.max_draft, options.rounds, say)
        found = [row_of(mode, runs[mode], runs[modes[0]], rows) for mode in modes]
        body["rows"] += found
        body["passes"][str(rows)] = pass_facts(passes)
        print(table(found), flush=True)
        if passes.graph_error:
            print(f"without CUDA graphs: {passes.graph_error}")
        if path:
            save(body, path)
        del passes, replay  # and with them the cache and the graphs, before the next
    if path:
        print(f"saved {path}")


if __name__ == "__main__":
    main()
