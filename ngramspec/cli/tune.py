"""`ngramspec tune`: find the drafter and sizes that suit your own requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.command import EXIT_INTERRUPTED, SectionCommand, interruptible
from ngramspec.cli.llama_cpp.placement import layers_of, layers_option
from ngramspec.cli.options import AT_LEAST_1, FILE, OLD_FILE, json_option, option, options
from ngramspec.cli.output import (
    duration_text,
    make_table,
    number_of,
    plain_console,
    print_json,
)
from ngramspec.cli.progress import progress
from ngramspec.cli.target import RUNNING, context_settings, running
from ngramspec.costs import PROFILES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec.bench.costs import Costs
    from ngramspec.bench.tuned import Tuned

COSTS, SEARCH = "Costs", "Search"
EPILOG = """\b
Examples:
  ngramspec tune benchmarks/data/traces --profile cpu
  ngramspec tune chat.jsonl --tokenizer tokenizer.json --profile h100-8b
  ngramspec tune logs/ --model model.gguf              # its tokenizer and measured costs
  ngramspec tune logs/ --model model.gguf --costs costs.json --time-limit 60
  ngramspec tune tokens.txt.xz --requests 200 --json

TRACES are what `ngramspec bench replay` reads: NAME.txt.xz or NAME.txt with token ids,
NAME.jsonl.xz or NAME.jsonl with text, for which --tokenizer or --model is needed, or
folders of them.

The recorded outputs stand in for the target. Drafters and sizes are chosen on the first
two thirds of each set; the figures are those of the last third, which is held out.
Without --profile and --costs, the costs are those that `ngramspec bench calibrate` saved
for --model in this setting, or the profile cpu. Ctrl-C prints the best found so far.
"""
NOTE_INTERRUPTED = "interrupted: the best so far follows; Ctrl-C again quits at once"
COLUMNS = ("lengths", "tok/pass", "accepted", "speed-up", "held out", "gain")
NOTE = (
    "tok/pass: mean accepted length, tokens per pass of the target; accepted: share of the "
    "drafted tokens that were right; speed-up: modelled, over plain decoding, on the requests used "
    "to choose; held out: the same on the last third of each set; gain: over the default. "
    "lengths auto: an AutoPolicy chooses them by the costs; fixed: as long as the sizes allow. "
)
LLAMA_NOTE = (
    "llama-server, fixed lengths. The figures are those of ngramspec's drafters of these names, "
    "which also find what llama-server's miss (docs/reference/differences.md)."
)


@click.command("tune", cls=SectionCommand, epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, type=FILE)
@options(
    option("Options", "-m", "--model", type=FILE,
           help="GGUF file: its tokenizer, for traces with text, and its costs."),
    option("Options", "--tokenizer", type=FILE,
           help="GGUF file or tokenizer.json, for traces with text."),
    json_option(),
    option(COSTS, "--profile", type=click.Choice(list(PROFILES)),
           help="Batch costs of the target, as in `bench replay`."),
    option(COSTS, "--costs", type=OLD_FILE, metavar="FILE",
           help="Cost table saved by `bench calibrate -o`."),
    option(SEARCH, "--requests", type=AT_LEAST_1, default=600,
           help="Number of requests to read from the start of each set."),
    option(SEARCH, "--time-limit", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
           help="Stop then and recommend the best so far. A quarter of it is for the held-out "
           "requests."),
    option(SEARCH, "--seed", type=int, default=0, metavar="N",
           help="Seed of the request samples in the first rounds."),
    option(SEARCH, "--max-prompt", type=AT_LEAST_1, default=12_000,
           help="Tokens to keep from the end of a prompt."),
    option(SEARCH, "--max-output", type=click.IntRange(2), default=1_200,
           help="Tokens to keep from the start of an output."),
    layers_option("Setting of saved costs"),
    running("Setting of saved costs", *(name for name in RUNNING if name != "exact")),
)  # fmt: skip
def tune(**values: Any) -> None:
    """Recommend a drafter and its sizes for your own requests.

    Replays recorded outputs with about 340 combinations of drafter, sizes and lengths: all of them
    on a few requests, then the best on more and more. Ranks them by the modelled speed-up over
    plain decoding.
    """
    if values["profile"] is not None and values["costs"] is not None:
        raise click.UsageError("give either --profile or --costs")
    found = _search(values)
    if values["as_json"]:
        print_json(found.as_json(values["model"]))
    else:
        _show(found, values["model"])
    if found.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _search(values: Mapping[str, Any]) -> Tuned:
    from ngramspec.bench.traces import Cut, find_traces, load_traces
    from ngramspec.bench.tuned import plan_search, run_search

    costs = _costs(values)
    paths = find_traces(values["traces"])
    cut = Cut(values["requests"], values["max_prompt"], values["max_output"])
    with progress("reading", len(paths)) as advance:
        tokenizer = values["tokenizer"] or values["model"]
        traces = load_traces(paths, tokenizer, cut, advance=advance)
    plan = plan_search(traces, values["seed"])
    with (
        interruptible(NOTE_INTERRUPTED) as interrupt,
        progress("tuning", plan.num_replays) as advance,
    ):
        return run_search(
            plan,
            costs,
            time_limit=values["time_limit"],
            advance=advance,
            interrupted=lambda: interrupt.requested,
        )


def _costs(values: Mapping[str, Any]) -> Costs:
    """Return the costs that the options name, those saved for the model, or a default profile."""
    from ngramspec.bench.costs import choose_costs, saved_costs

    if values["costs"] or values["profile"] or not values["model"]:
        return choose_costs(values["costs"], values["profile"])
    layers = layers_of(values["n_gpu_layers"], "--n-gpu-layers")
    return saved_costs(values["model"], context_settings({**values, "exact": False}), layers)


def _show(found: Tuned, model: Path | None) -> None:
    """Print the best results, the lines to use them, and how far to trust the figures."""
    console = plain_console()
    tuning = found.tuning
    total = number_of(sum(found.plan.sets.values()), "request")
    sets = number_of(len(found.plan.sets), "set")
    console.print(f"{total} of {sets}; costs: {found.costs.source} ({found.costs.reason})")
    if not tuning.results:
        console.print("Nothing was replayed.")
        return
    console.print(_table(found))
    console.print(NOTE + " ".join(_worth(found)), style="dim")
    _show_recommendation(console, found, model)
    _show_llama_server(console, found, model)


def _table(found: Tuned) -> Table:
    tuning = found.tuning
    table = make_table(["drafter", *COLUMNS], text=["drafter"])
    for result in tuning.finalists:
        candidate, tally = result.candidate, result.reported
        gain = found.gain(result)
        default = ["(default)"] if result is tuning.default else []
        words = [candidate.spec.replace(",", ", "), *candidate.sizes.split(","), *default]
        table.add_row(
            " ".join(filter(None, words)),
            candidate.lengths,
            f"{tally.mean_accepted_length:.2f}",
            f"{tally.acceptance:.0%}",
            f"{tuning.speedup(result.tally):.3f}",
            "-" if result.held_out is None else f"{tuning.speedup(result.held_out):.3f}",
            "-" if gain is None else f"{gain - 1:+.1%}",
            style="bold" if result is tuning.best else None,
        )
    return table


def _worth(found: Tuned) -> Iterator[str]:
    """Yield notes on how far to trust the figures."""
    from ngramspec.bench.split import LEAST, PART

    tuning = found.tuning
    searched = f"{len(found.plan.candidates)} candidates in {duration_text(found.seconds)}"
    if tuning.best.held_out is not None:
        yield (
            f"{searched}: chosen on {tuning.num_chosen_on} requests; tok/pass, accepted and gain "
            f"are those of the {tuning.num_held_out} held out."
        )
    elif not tuning.num_held_out:
        yield (
            f"{searched}: chosen and measured on the same {tuning.num_chosen_on} requests, which "
            f"is optimistic; {PART * LEAST} would be enough to hold some out."
        )
    else:
        yield f"{searched}: the held-out requests were not replayed: the figures are optimistic."
    if not tuning.finished:
        why = "interrupted" if found.interrupted else "out of time"
        done = tuning.results[0].requests
        least = min(result.requests for result in tuning.finalists)
        fewer = f", the others {least} or more" if least < done else ""
        yield f"{why}: the best have seen {done} of {tuning.num_chosen_on} requests{fewer}."


def _show_recommendation(console: Console, found: Tuned, model: Path | None) -> None:
    from ngramspec.bench.lines import imports, ready_lines

    best, tuning = found.tuning.best, found.tuning
    console.print()
    if best is tuning.default:
        text = "Recommended: the default. Nothing beats it by more than 1 %."
    else:
        gain = found.gain(best) or 1.0
        text = f"Recommended: {best.candidate.name} lengths, {gain - 1:+.1%} over the default."
    console.print(text, style="bold")
    lines = ready_lines(best.candidate, found.costs, model)
    for line in (lines["serve"], "", *imports(best.candidate, found.costs)):
        console.print(f"  {line}".rstrip(), soft_wrap=True)
    console.print(f"  drafter = {lines['create_drafter']}", soft_wrap=True)
    console.print(f"  draft_model = {lines['ngram_draft']}", soft_wrap=True)


def _show_llama_server(console: Console, found: Tuned, model: Path | None) -> None:
    from ngramspec.bench.lines import llama_server_line

    tuning = found.tuning
    theirs = tuning.best_for_llama_server
    console.print()
    if theirs is None:
        text = "For llama-server: none of its settings gains more than 1 %; run it without drafts."
        console.print(text, style="bold")
        return
    speedup = tuning.speedup(theirs.reported)
    where = "held-out requests" if theirs.held_out is not None else "requests it was chosen on"
    text = f"For llama-server: {speedup:.3f} times plain decoding on the {where}."
    console.print(text, style="bold")
    console.print(f"  {llama_server_line(theirs.candidate, model)}", soft_wrap=True)
    console.print(LLAMA_NOTE, style="dim")
