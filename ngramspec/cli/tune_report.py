"""What `ngramspec tune` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from ngramspec.bench.outcome import figures
from ngramspec.bench.split import LEAST, PART
from ngramspec.bench.tally import Tally
from ngramspec.bench.tune import Result, Tuning
from ngramspec.cli.cache_report import plain_console, plain_table
from ngramspec.cli.sizes import duration_text, number_of
from ngramspec.cli.tune_lines import imports, llama_server_line, ready_lines
from ngramspec.cli.tune_run import Tuned

COLUMNS = ("lengths", "tok/pass", "accepted", "speed-up", "held out", "gain")
NOTE = (
    "tok/pass: mean accepted length, tokens per pass of the target; accepted: share of the "
    "drafted tokens that were right; speed-up: modelled, over plain decoding, on the requests that "
    "were chosen on; held out: the same on the last third of each set; gain: over the default. "
    "lengths auto: an AutoPolicy chooses them by the costs; fixed: as far as the sizes go. "
)
LLAMA_NOTE = (
    "llama-server, fixed lengths. The figures are those of ngramspec's drafters of these names, "
    "which also find what llama-server's miss (docs/differences.md)."
)


def as_json(found: Tuned) -> dict[str, Any]:
    """Return everything that was found, as plain data; no recommendation without results."""
    tuning = found.tuning
    made: dict[str, Any] = {
        "costs": {
            "name": found.costs.table.name,
            "profile": found.costs.profile,
            "file": None if found.costs.path is None else str(found.costs.path),
            "reason": found.costs.reason,
        },
        "sets": dict(found.sets),
        "requests": {"chosen_on": tuning.num_chosen_on, "held_out": tuning.num_held_out},
        "seed": found.seed,
        "seconds": round(found.seconds, 3),
        "finished": tuning.finished,
        "interrupted": found.interrupted,
        "rounds": [{"candidates": many, "requests": n} for many, n in tuning.rounds],
        "num_candidates": found.num_candidates,
        "recommended": None,
        "llama_server": None,
        "results": [_row(tuning, result) for result in tuning.results],
    }
    if tuning.results:
        made["recommended"] = {
            **_row(tuning, tuning.best),
            "is_default": tuning.best is tuning.default,
            **ready_lines(tuning.best.candidate, found.costs, found.model),
        }
        theirs = tuning.best_for_llama_server
        if theirs is not None:
            line = llama_server_line(theirs.candidate, found.model)
            made["llama_server"] = {**_row(tuning, theirs), "command": line}
    return made


def show(found: Tuned) -> None:
    """Print the best few, what to write, and what the figures are worth."""
    console = plain_console()
    tuning = found.tuning
    total = number_of(sum(found.sets.values()), "request")
    sets = number_of(len(found.sets), "set")
    console.print(f"{total} of {sets}; costs: {found.costs.source} ({found.costs.reason})")
    if not tuning.results:
        console.print("Nothing was replayed.")
        return
    console.print(_table(tuning))
    console.print(NOTE + " ".join(_worth(found)), style="dim")
    _show_recommendation(console, found)
    _show_llama_server(console, found)


def _table(tuning: Tuning) -> Table:
    table = plain_table([("drafter", False), *((name, True) for name in COLUMNS)])
    table.padding = (0, 1, 0, 0)
    for result in tuning.finalists:
        candidate, tally = result.candidate, _reported(result)
        gain = _gain(tuning, result)
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
    """Yield what the figures are worth."""
    tuning = found.tuning
    searched = f"{found.num_candidates} candidates in {duration_text(found.seconds)}"
    if tuning.best.held_out is not None:
        yield (
            f"{searched}: chosen on {tuning.num_chosen_on} requests; tok/pass, accepted and gain "
            f"are those of the {tuning.num_held_out} held out."
        )
    elif not tuning.num_held_out:
        yield (
            f"{searched}: chosen and judged on the same {tuning.num_chosen_on} requests, which "
            f"flatters; {PART * LEAST} would be enough to hold some out."
        )
    else:
        yield f"{searched}: the held-out requests were not replayed, which flatters."
    if not tuning.finished:
        why = "interrupted" if found.interrupted else "out of time"
        done = tuning.results[0].requests
        least = min(result.requests for result in tuning.finalists)
        fewer = f", the others {least} or more" if least < done else ""
        yield f"{why}: the best have seen {done} of {tuning.num_chosen_on} requests{fewer}."


def _show_recommendation(console: Console, found: Tuned) -> None:
    best, tuning = found.tuning.best, found.tuning
    console.print()
    if best is tuning.default:
        text = "Recommended: the default. Nothing beats it by more than 1 %."
    else:
        gain = _gain(tuning, best) or 1.0
        text = f"Recommended: {best.candidate.name} lengths, {gain - 1:+.1%} over the default."
    console.print(text, style="bold")
    lines = ready_lines(best.candidate, found.costs, found.model)
    for line in (lines["serve"], "", *imports(best.candidate, found.costs)):
        console.print(f"  {line}".rstrip(), soft_wrap=True)
    console.print(f"  drafter = {lines['create_drafter']}", soft_wrap=True)
    console.print(f"  draft_model = {lines['ngram_draft']}", soft_wrap=True)


def _show_llama_server(console: Console, found: Tuned) -> None:
    tuning = found.tuning
    theirs = tuning.best_for_llama_server
    console.print()
    if theirs is None:
        text = "For llama-server: nothing that it can do gains more than 1 %; leave drafts out."
        console.print(text, style="bold")
        return
    speedup = tuning.speedup(_reported(theirs))
    where = "held-out requests" if theirs.held_out is not None else "requests it was chosen on"
    text = f"For llama-server: {speedup:.3f} times plain decoding on the {where}."
    console.print(text, style="bold")
    console.print(f"  {llama_server_line(theirs.candidate, found.model)}", soft_wrap=True)
    console.print(LLAMA_NOTE, style="dim")


def _row(tuning: Tuning, result: Result) -> dict[str, Any]:
    """Return the figures of a candidate."""
    candidate, gain = result.candidate, tuning.held_out_gain(result)
    held_out = result.held_out
    return {
        "drafter": candidate.spec,
        "parameters": dict(candidate.params),
        "lengths": candidate.lengths,
        "for_llama_server": candidate.for_llama_server,
        "requests": result.requests,
        "chosen_on": _figures(tuning, result.tally),
        "held_out": None if held_out is None else _figures(tuning, held_out),
        "held_out_gain": None if gain is None else round(gain, 4),
    }


def _figures(tuning: Tuning, tally: Tally) -> dict[str, Any]:
    return {"modelled_speedup": round(tuning.speedup(tally), 4), **figures(tally)}


def _gain(tuning: Tuning, result: Result) -> float | None:
    """Return the gain over the default: on the held-out requests, where both have seen them."""
    held_out = tuning.held_out_gain(result)
    return tuning.gain(result) if held_out is None else held_out


def _reported(result: Result) -> Tally:
    return result.held_out or result.tally
