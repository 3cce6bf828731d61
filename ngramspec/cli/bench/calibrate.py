"""`ngramspec bench calibrate`: measure what a batch costs on this machine, for later commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ngramspec.cli.bench.e2e import SyntheticOptions
from ngramspec.cli.command import EXIT_INTERRUPTED, Failure, error_line, interruptible
from ngramspec.cli.files import JsonOptions, check_output, is_costs
from ngramspec.cli.options import command, flag
from ngramspec.cli.output import make_table, number_of, plain_console, print_json
from ngramspec.cli.progress import progress
from ngramspec.cli.target import TargetOptions, open_idle

if TYPE_CHECKING:
    from ngramspec.engine.calibration import Calibration
    from ngramspec.llamacpp import LlamaTarget

NOTE = "interrupted; Ctrl-C again quits at once"
COLUMNS = ("tokens", "ms", "relative to 1", "ms per token")
EPILOG = """\b
Examples:
  ngramspec bench calibrate
  ngramspec bench calibrate --model model.gguf -t 8 -fa on -ctk q8_0 -ctv q8_0
  ngramspec bench calibrate --model model.gguf -o costs.json
  ngramspec bench replay benchmarks/data/traces --costs costs.json

A batch of n tokens is a draft of n - 1 and the token before it. With --synthetic the table
has the speed-up over no drafts of such drafts, if they are so often right. Without -o the costs go
to ngramspec/costs in XDG_CACHE_HOME (~/.cache), for this model, machine and setting: give the
options that you serve with, and -ngl N where not all layers fit on the GPU. `serve` and
`generate` measure roughly by themselves the first time. Ctrl-C prints what was measured and
saves nothing.
"""
# What --help shows.
EVERYDAY = (
    *("model", "hf_repo", "threads", "flash_attn", "cache_type_k", "cache_type_v", "n_gpu_layers"),
    *("context", "max_batch", "rounds", "output", "as_json", "synthetic", "synthetic_length"),
)


@dataclass
class CalibrateOptions(TargetOptions, SyntheticOptions, JsonOptions):
    """Options of `bench calibrate`."""

    section = "Measurement"
    # fmt: off
    context: int = flag("--context", "Tokens in the cache, at most what the model has room for.",
        default=512, low=0)
    max_batch: int = flag("--max-batch", "Largest batch, at most --batch-size.", default=128, low=1)
    rounds: int = flag(
        "--rounds", "Samples per size; the median is used.", default=7, low=1, high=1000)
    output: Path | None = flag(
        "-o --output", "Save the costs to this file instead of the usual place.", metavar="FILE")


@command("calibrate", EPILOG, everyday=EVERYDAY)
def calibrate(options: CalibrateOptions) -> None:
    """Measure what verification costs, by tokens in the batch.

    Times passes over 1 to 8 tokens and some larger batches, with logits for every token.
    The cost is not linear in the batch size: llama.cpp chooses other kernels for other sizes.
    """
    from ngramspec.engine.policy import OFF
    from ngramspec.llamacpp.saved_costs import save_calibration

    if options.output is not None:
        check_output(options.output, {"table of costs": is_costs})
    options.resolve()
    most = min(options.max_batch, options.batch_size)
    rates = options.rates(max(most - 1, 1))
    with open_idle(
        options, lambda model: min(options.context + most, model.n_ctx_train), OFF
    ) as target:
        most = min(most, target.model.n_ctx_train)
        path = options.output or _usual_output(target)
        calibration = _measure(target, target.context_size - most, most, options.rounds)
        if calibration.complete:
            save_calibration(calibration, target, path)
        saved = path if calibration.complete else None
        _show(calibration, target, saved, options.as_json, rates)
    if not calibration.complete:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _usual_output(target: LlamaTarget) -> Path:
    """Return where the costs are looked for; make the folder, so that errors come early."""
    from ngramspec.llamacpp.saved_costs import costs_path

    path = costs_path(target.model, target.settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{error_line(error)}: choose another place with --output") from error
    return path


def _measure(target: LlamaTarget, context: int, most: int, rounds: int) -> Calibration:
    from ngramspec.engine.calibration import calibrate as measure
    from ngramspec.engine.calibration import sizes_up_to
    from ngramspec.lab.e2e.tasks import sample_tokens

    most = min(most, target.max_batch, target.exact_batch or most)
    sizes = sizes_up_to(most)
    tokens = sample_tokens(target.model, context + most)
    total = len(sizes) * (rounds + 1)
    with interruptible(NOTE) as interrupt, progress("measuring", total) as advance:
        return measure(
            target, tokens, sizes, rounds, advance=advance, stopped=lambda: interrupt.requested
        )


def _show(
    calibration: Calibration,
    target: LlamaTarget,
    saved: Path | None,
    as_json: bool,
    rates: Sequence[float],
) -> None:
    from ngramspec.llamacpp.saved_costs import cost_key, layers_note

    rows, key = calibration.rows(), cost_key(target.model, target.settings)
    for row in rows if rates else ():
        relative, right = row["relative"], sum(rates[: row["tokens"] - 1])
        row["speedup"] = None if relative is None else round((1 + right) / relative, 4)
    if as_json:
        return print_json({
            "model": str(target.model.path),
            "saved": None if saved is None else str(saved),
            "complete": calibration.complete,
            "context": calibration.context,
            "key": key,
            "costs": rows
        })  # fmt: skip
    console = plain_console()
    if not rows:
        return console.print("Nothing was measured.")
    fewest, most = (pick(row["samples"] for row in rows) for pick in (min, max))
    samples = f"{fewest} to {most}" if fewest < most else f"{most}"
    threads = number_of(target.settings.num_threads[1], "thread")
    context = number_of(calibration.context, "token")
    title = f"{target.model.path.name}, {threads}, {context} in the cache, medians of {samples}"
    console.print(title, style="bold", soft_wrap=True)
    table = make_table((*COLUMNS, "speed-up") if rates else COLUMNS, gap=2)
    for row in rows:
        relative = "-" if row["relative"] is None else f"{row['relative']:.2f}"
        times = (1e3 * row["seconds"], 1e3 * row["seconds_per_token"])
        cells = [str(row["tokens"]), f"{times[0]:.3f}", relative, f"{times[1]:.3f}"]
        if rates:
            cells.append("-" if row["speedup"] is None else f"{row['speedup']:.2f}")
        table.add_row(*cells)
    console.print(table)
    line = "not saved: incomplete" if saved is None else f"saved: {saved}"
    console.print(line, soft_wrap=True)
    if saved is not None and (note := layers_note(key)):
        console.print(note, soft_wrap=True)
