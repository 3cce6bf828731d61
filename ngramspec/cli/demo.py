"""`ngramspec demo`: real speculative decoding on the embedded model, in under two minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import Failure, SectionCommand
from ngramspec.cli.tasks import DRAFTERS, TASK_NAMES, TASKS

if TYPE_CHECKING:
    from rich.console import Console

    from ngramspec.cli.measure import Benches, TaskResult

EPILOG = """\b
Examples:
  ngramspec demo
  ngramspec demo --task rename --drafter ngram-mod --drafter ngram-cache
  ngramspec demo --repeats 9 --json > demo.json
"""

COLUMNS = """\
tok/s: after the prompt; accepted: drafted tokens that were right; mean len:
tokens per decode of the model; draft µs: time in the drafter per decode; same:
texts equal to those without drafts.
"""
GAIN = """\
Drafts pay where a batch costs less than its tokens one by one. The bit-exact
setting has no such gain for so small a model on a CPU: --exact times it."""


@click.command(cls=SectionCommand, epilog=EPILOG)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(TASK_NAMES),
    help="Only this task; again for more.",
)
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="LIST",
    help="Only this drafter or chain (names with commas between); again for more.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    metavar="N",
    default=5,
    show_default=True,
    help="Timed runs of each.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(2, 1024),
    metavar="N",
    default=256,
    show_default=True,
    help="Longest answer, in tokens.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 512),
    metavar="N",
    default=1,
    show_default=True,
    help="CPU threads of the timed runs, no more than cores that are idle.",
)
@click.option(
    "--exact", is_flag=True, help="Time the bit-exact setting: flash attention, one thread."
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results instead.")
@click.option("--no-color", is_flag=True, help="Mark accepted tokens with « » instead of colour.")
def demo(**options: Any) -> None:
    """Show what drafts do for the embedded model, with every drafter.

    A model of 5.5 million parameters that ships with the package edits and copies code, greedily,
    without drafts and with each drafter. The texts must be equal token for token in llama.cpp's
    bit-exact setting (flash attention, one thread), or the exit code is 1. The times are without
    flash attention, in interleaved runs; each run has a fresh drafter, so no text is learned from
    an earlier run, but the policy goes on.
    """
    from ngramspec.cli.measure import open_benches
    from ngramspec.drafters.names import parse_names

    if options["exact"] and options["threads"] != 1:
        raise click.UsageError("--exact is for one thread: drop --threads")
    drafters = tuple(options["drafters"]) or DRAFTERS
    drafters = tuple(dict.fromkeys(",".join(parse_names(spec, "priority")) for spec in drafters))
    console = _console(options)
    with open_benches(drafters, options["threads"], options["exact"]) as benches:
        if not options["as_json"]:
            _show_head(console, options)
        results = list(_results(benches, console, options))
    if options["as_json"]:
        _print_json(results, options)
    else:
        _show_tables(console, results, options, benches.one)
    _fail_on_difference(results)


def _console(options: dict[str, Any]) -> Console:
    from rich.console import Console

    return Console(no_color=options["no_color"] or None, highlight=False)


def _results(benches: Benches, console: Console, options: dict[str, Any]) -> Iterator[TaskResult]:
    from ngramspec.cli.measure import count_runs, run_task
    from ngramspec.cli.progress import progress
    from ngramspec.cli.report import show_text

    chosen = [task for task in TASKS if task.name in (options["tasks"] or TASK_NAMES)]
    total = count_runs(len(chosen), options["repeats"], benches)
    done = 0
    for task in chosen:
        with progress(task.title, total, done) as advance:
            result = run_task(
                benches,
                task,
                repeats=options["repeats"],
                max_tokens=options["max_tokens"],
                advance=advance,
            )
        done += total // len(chosen)
        if not options["as_json"]:
            show_text(console, result, result.outcomes[-1])
        yield result


def _show_head(console: Console, options: dict[str, Any]) -> None:
    from rich.text import Text

    from ngramspec import __version__
    from ngramspec.cli.report import has_colour
    from ngramspec.cli.text import ACCEPTED_STYLE, CLOSE, OPEN, OWN_STYLE
    from ngramspec.models import embedded_model

    console.print(Text(f"ngramspec {__version__}, model {embedded_model().name}", style="bold"))
    if not has_colour(console):
        console.print(f"{OPEN}marked{CLOSE} = accepted draft tokens, the rest is the model's own\n")
        return
    legend: list[Any] = [
        ("green", ACCEPTED_STYLE),
        " = accepted draft tokens, ",
        ("bold", OWN_STYLE),
    ]
    console.print(Text.assemble(*legend, " = the model's own\n"))


def _show_tables(
    console: Console, results: Sequence[TaskResult], options: dict[str, Any], one: bool
) -> None:
    from ngramspec.cli.report import make_rows, speed_table, task_table

    rows = make_rows(results)
    repeats, threads = options["repeats"], 1 if one else options["threads"]
    runs = f"median of {repeats} runs" if repeats > 1 else "1 run"
    plural = "s" if threads > 1 else ""
    console.print(speed_table(rows, f"All tasks, {runs}, {threads} thread{plural}"))
    if len(results) > 1:
        console.print(task_table(results))
    drafted = rows[1:]
    same, texts = sum(row.same for row in drafted), sum(row.texts for row in drafted)
    console.print(COLUMNS, style="dim")
    console.print(
        f"{same} of {texts} texts equal those without drafts, token for token, in the\n"
        "bit-exact setting (flash attention, 1 thread)."
    )
    if not one:
        _show_timed_equality(console, results, sum(row.timed_same for row in drafted), texts)
        console.print(GAIN, style="dim")


def _show_timed_equality(
    console: Console, results: Sequence[TaskResult], same: int, texts: int
) -> None:
    partings = [o.timed_parting for r in results for o in r.outcomes if o.timed_parting]
    margins = [abs(parting.margin) for parting in partings if parting.margin is not None]
    text = f"Times are without flash attention; there {same} of {texts} are equal"
    if margins:
        text += f",\nthe others part where two tokens are at most {max(margins):.3f} logits apart"
    console.print(f"{text}.")


def _print_json(results: Sequence[TaskResult], options: dict[str, Any]) -> None:
    import json

    from ngramspec import __version__
    from ngramspec.cli.report import as_json
    from ngramspec.models import embedded_model

    keys = ("repeats", "max_tokens", "threads", "exact")
    head = {"version": __version__, "model": embedded_model().name}
    settings = {"settings": {key: options[key] for key in keys}}
    click.echo(json.dumps({**head, **settings, **as_json(results)}, indent=1))


def _fail_on_difference(results: Sequence[TaskResult]) -> None:
    for result in results:
        for outcome in result.outcomes:
            if outcome.parting is not None:
                where = f"task {result.task.name}, {outcome.drafter}"
                raise Failure(f"{where}: {outcome.parting.line()}; see docs/exactness.md")
