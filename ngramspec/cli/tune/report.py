"""What `ngramspec tune` prints: the best results, their worth, and the lines to use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ngramspec.cli.output import (
    duration_text,
    make_table,
    number_of,
    plain_console,
    size_text,
)
from ngramspec.lab.tune.split import LEAST, PART
from ngramspec.pages import page_url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec.lab.tune.result import Tuned

COLUMNS = ("lengths", "tok/pass", "accepted", "speed-up", "held out", "gain")
NOTE = (
    "tok/pass: mean accepted length, tokens per pass of the target; accepted: share of the "
    "drafted tokens that were right; speed-up: modelled, over plain decoding, on the requests used "
    "to choose; held out: the same on the last third of each set; gain: over the default. "
    "lengths auto: an AutoPolicy chooses them by the costs; fixed: as long as the sizes allow. "
)
SLOWER = (
    "So here plain decoding was the fastest (`ngramspec serve --spec-type none`): drafts do not "
    "pay for this model on this machine, or it was busy. `ngramspec bench calibrate` measures what "
    "they cost."
)
LLAMA_NOTE = (
    "llama-server, fixed lengths. The figures are those of ngramspec's drafters of these names, "
    "which also find what llama-server's miss:"
)


def show(tuned: Tuned, model: Path | None) -> None:
    """Print the best results, the lines to use them, and how far to trust the figures."""
    console = plain_console()
    tuning = tuned.tuning
    total = number_of(sum(tuned.plan.sets.values()), "request")
    sets = number_of(len(tuned.plan.sets), "set")
    console.print(f"{total} of {sets}; costs: {tuned.costs.source} ({tuned.costs.reason})")
    if not tuning.results:
        console.print("Nothing was replayed.")
        return
    console.print(_table(tuned))
    console.print(NOTE + " ".join(_worth(tuned)), style="dim")
    _show_recommendation(console, tuned, model)
    _show_llama_server(console, tuned, model)


def _table(tuned: Tuned) -> Table:
    tuning = tuned.tuning
    table = make_table(["drafter", *COLUMNS], text=["drafter"])
    for result in tuning.finalists:
        candidate, tally = result.candidate, result.reported
        gain = tuned.gain(result)
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


def _worth(tuned: Tuned) -> Iterator[str]:
    """Yield notes on how far to trust the figures."""
    tuning = tuned.tuning
    searched = f"{len(tuned.plan.candidates)} candidates in {duration_text(tuned.seconds)}"
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
        why = "interrupted" if tuned.interrupted else "out of time"
        done = tuning.results[0].requests
        least = min(result.requests for result in tuning.finalists)
        fewer = f", the others {least} or more" if least < done else ""
        yield f"{why}: the best have seen {done} of {tuning.num_chosen_on} requests{fewer}."


def _show_recommendation(console: Console, tuned: Tuned, model: Path | None) -> None:
    from ngramspec.lab.tune.lines import imports, ready_lines

    advised = tuned.advised
    _show_trial(console, tuned)
    console.print()
    console.print(f"Recommended: {_recommendation(tuned)}", style="bold")
    console.print(_modelled(tuned))
    _show_measured(console, tuned)
    lines = ready_lines(advised, tuned.costs, model, tuned.options)
    for line in (lines["serve"], "", *imports(advised, tuned.costs)):
        console.print(f"  {line}".rstrip(), soft_wrap=True)
    console.print(f"  drafter = {lines['create_drafter']}", soft_wrap=True)
    console.print(f"  draft_model = {lines['ngram_draft']}", soft_wrap=True)


def _recommendation(tuned: Tuned) -> str:
    """Return what is recommended, with its gain where that was found in the search."""
    tuning, advised = tuned.tuning, tuned.advised
    with_file = " with the file" if tuned.file_options else ""
    if advised.name == tuning.default.candidate.name:
        return f"the default{with_file}." + (
            "" if with_file else " Nothing beats it by more than 1 %."
        )
    gain = tuned.gain(tuning.best)
    gained = f", {gain - 1:+.1%} over the default" if gain is not None else ""
    return f"{advised.name} lengths{with_file}{gained}."


def _modelled(tuned: Tuned) -> str:
    """Return the speed-ups over plain decoding."""
    tuning, trial = tuned.tuning, tuned.trial
    row = next(one for one in tuning.results if one.candidate.name == tuned.advised.name)
    text = f"Modelled over plain decoding: {tuning.speedup(row.reported):.3f}"
    if row is not tuning.default:
        text += f" (the default: {tuning.speedup(tuning.default.reported):.3f})"
    if trial is not None and trial.path is not None:
        before, now = trial.speedup(trial.best_without), trial.speedup(trial.best_with)
        text += f"; after a restart {now:.3f} with the file, {before:.3f} at best without"
    return f"{text}."


def _show_trial(console: Console, tuned: Tuned) -> None:
    """Print what the statistics file is worth."""
    trial = tuned.trial
    if trial is None:
        return
    text = ["after a restart", "lengths", "file"]
    table = make_table([*text, "tok/pass", "speed-up"], text=text)
    for one in trial.starts:
        table.add_row(
            one.candidate.name.removesuffix(f" {one.candidate.lengths}").replace(",", ", "),
            one.candidate.lengths,
            one.reader and f"for {one.reader}",
            f"{one.tally.mean_accepted_length:.2f}",
            f"{trial.speedup(one):.3f}",
        )
    console.print()
    console.print(table)
    worth = (
        f"{size_text(trial.num_bytes)} from {number_of(trial.num_texts, 'answer')}, "
        f"{trial.gain - 1:+.1%} after a restart on the "
        f"{number_of(tuned.tuning.num_held_out, 'held-out request')}, which it was not built from"
    )
    if trial.path is None:
        console.print(f"No file was written, as it does not pay: {worth}.")
    else:
        console.print(f"Written: {trial.path}", soft_wrap=True)  # a path is copied whole
        console.print(f"{worth}. It holds answers: keep it private.")


def _show_measured(console: Console, tuned: Tuned) -> None:
    """Print what was measured on the model."""
    measured = tuned.measured
    if measured is None:
        return
    words = []
    for row in measured.rows:
        ratio = "" if row is measured.rows[0] else f" ({row.ratio:.2f}x)"
        words.append(f"{row.name} {row.tokens_per_second:.1f} tokens/s{ratio}")
    count = number_of(measured.requests, "request")
    console.print(f"Measured on {count} after a restart: {', '.join(words)}.")
    if all(row.ratio < 1 for row in measured.rows[1:]):
        console.print(SLOWER)


def _show_llama_server(console: Console, tuned: Tuned, model: Path | None) -> None:
    from ngramspec.lab.tune.lines import llama_server_line

    tuning = tuned.tuning
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
    line = llama_server_line(theirs.candidate, model, tuned.setting)
    console.print(f"  {line}", soft_wrap=True)
    console.print(LLAMA_NOTE, style="dim")
    console.print(page_url("reference/differences.md"), style="dim", soft_wrap=True)
