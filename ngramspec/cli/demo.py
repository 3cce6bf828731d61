"""`ngramspec demo`: real speculative decoding; on the embedded model in under two minutes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ngramspec.cli.command import EXIT_INTERRUPTED, NOTE_MEASURED, Failure, Interrupt, interruptible
from ngramspec.cli.files import JsonOptions
from ngramspec.cli.model import ModelOptions, layers_flag, layers_in
from ngramspec.cli.options import command, flag, in_list
from ngramspec.cli.output import (
    ACCEPTED_STYLE,
    CLOSE,
    OPEN,
    OWN_STYLE,
    has_colour,
    make_table,
    marked_text,
    number_of,
    print_json,
    speedup_cell,
    styled,
)
from ngramspec.cli.progress import progress
from ngramspec.drafting.names import DRAFTER_NAMES
from ngramspec.lab.e2e.tasks import TASK_NAMES, TASKS
from ngramspec.messages import page_url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec.lab.e2e.demo import Benches, Row, TaskOutcome, TaskResult

EPILOG = """\b
Examples:
  ngramspec demo
  ngramspec demo --model model.gguf --repeats 3
  ngramspec demo --task rename --drafter ngram-mod --drafter ngram-cache
"""

COLUMNS = """\
tok/s: after the prompt; acceptance: share of the drafted tokens that were
accepted; tok/pass: tokens per pass of the model; draft µs: time in the drafter
per pass; same: texts equal to those without drafts.
"""
GAIN = """\
Drafts pay when a batch costs less than its tokens one by one. For so small a
model on a CPU the bit-exact setting has no such gain; --exact times it."""


@dataclass
class DemoOptions(ModelOptions, JsonOptions):
    """Options of `demo`."""

    # fmt: off
    tasks: tuple[str, ...] = flag(
        "--task", "Run only this task (repeatable).", default=(), choices=TASK_NAMES)
    drafters: tuple[str, ...] = flag(
        "--drafter --spec-type", "Run only this drafter or comma-separated list of drafters "
        "(repeatable).", default=(), metavar="LIST", shell_complete=in_list(*DRAFTER_NAMES))
    repeats: int = flag("--repeats", "Timed runs per task and drafter.", default=5, low=1, high=100)
    max_tokens: int = flag(
        "-n --max-tokens", "Longest answer, in tokens.", default=256, low=2, high=1024)
    threads: int = flag("--threads", "CPU threads of the timed runs; use no more than there are "
        "idle cores.", default=1, low=1, high=512)
    exact: bool = flag(
        "--exact", "Time the bit-exact setting: flash attention, one thread.", default=False)
    n_gpu_layers: str | None = layers_flag("0")
    no_color: bool = flag(
        "--no-color", "Mark accepted tokens with « » instead of colour.", default=False)


@command("demo", EPILOG)
def demo(options: DemoOptions) -> None:
    """Show what six drafters do for a model.

    A model of 7.2 million parameters that ships with the package, or yours, edits and copies code,
    greedily, without drafts and with each drafter. The texts must be equal token for token in
    llama.cpp's bit-exact setting, or the exit code is 1; a line tells where this machine has none.
    The times are without flash attention, in interleaved runs, with a fresh drafter each.
    llama.cpp's five drafters have sizes for short texts and fixed lengths here; `ngramspec bench
    e2e` runs them at their defaults.
    """
    from rich.console import Console

    from ngramspec.drafting.names import parse_names
    from ngramspec.lab.e2e.demo import DRAFTERS, open_benches
    from ngramspec.llamacpp.fit import Words, find_machine, layer_notes
    from ngramspec.llamacpp.placement import Placement

    options.resolve()
    if options.exact and options.threads != 1:
        raise click.UsageError("--exact needs one thread: drop --threads")
    specs = options.drafters or DRAFTERS
    drafters = tuple(dict.fromkeys(",".join(parse_names(spec, "priority")) for spec in specs))
    console = Console(no_color=options.no_color or None, highlight=False)
    placement = Placement(layers_in(options.n_gpu_layers, "--n-gpu-layers"))
    for line in layer_notes(find_machine(), placement, Words(layers="-ngl")):
        click.echo(line, err=True)
    settings = (options.threads, options.exact, placement.layers, options.model)
    with contextlib.ExitStack() as stack:
        with progress("loading and testing") if options.model else contextlib.nullcontext():
            benches = stack.enter_context(open_benches(drafters, *settings))
        if benches.refusal:
            click.echo(f"texts are compared as they are timed: {benches.refusal}", err=True)
        if not options.as_json:
            _show_head(console, benches.model.path.name)
        with interruptible(NOTE_MEASURED) as interrupt:
            results = list(_results(benches, console, options, interrupt))
    if not results:
        click.echo("nothing was measured", err=True)
    elif options.as_json:
        _print_json(results, options, benches)
    else:
        _show_tables(console, results, options, benches)
    if not benches.refusal:
        _fail_on_difference(results)
    if interrupt.requested:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _results(
    benches: Benches, console: Console, options: DemoOptions, interrupt: Interrupt
) -> Iterator[TaskResult]:
    from ngramspec.lab.e2e.demo import run_task

    chosen = [task for task in TASKS if task.name in (options.tasks or TASK_NAMES)]
    each = benches.count_runs(options.repeats)
    with progress("starting", each * len(chosen)) as advance:
        for number, task in enumerate(chosen):
            advance.name(task.title)
            result = run_task(
                benches,
                task,
                repeats=options.repeats,
                max_tokens=options.max_tokens,
                advance=advance,
                first=number * options.repeats,  # rounds are counted on, as in `bench e2e`
                stopped=lambda: interrupt.requested,
            )
            if result is None:
                return
            if not options.as_json:
                with advance.paused():
                    _show_text(console, result, result.outcomes[-1])
            yield result


def _show_head(console: Console, model: str) -> None:
    from rich.text import Text

    from ngramspec import __version__

    console.print(Text(f"ngramspec {__version__}, model {model}", style="bold"))
    if not has_colour(console):
        console.print(f"{OPEN}marked{CLOSE} = accepted draft tokens, the rest is the model's own\n")
        return
    drafted = ("green", ACCEPTED_STYLE)
    console.print(
        Text.assemble(
            drafted, " = accepted draft tokens, ", ("bold", OWN_STYLE), " = the model's own\n"
        )
    )


def _show_text(console: Console, result: TaskResult, outcome: TaskOutcome) -> None:
    """Print one task's request and answer, accepted draft tokens in colour or between marks."""
    from rich.rule import Rule
    from rich.text import Text

    run = outcome.exact
    console.print(Rule(Text(result.task.title, style="bold"), align="left", style="dim"))
    console.print(Text(f"> {result.task.request}", style="cyan"))
    coloured = has_colour(console)
    text = Text.assemble(*styled(outcome.pieces)) if coloured else Text(marked_text(outcome.pieces))
    console.print(text, soft_wrap=True)
    share = run.accepted / max(1, len(run.token_ids))
    note = f"{len(run.token_ids)} tokens, {share:.0%} of them from drafts, {run.steps} passes"
    console.print(Text(f"{note} ({outcome.drafter})\n", style="dim"))


def _show_tables(
    console: Console, results: Sequence[TaskResult], options: DemoOptions, benches: Benches
) -> None:
    from ngramspec.lab.e2e.demo import make_rows

    rows = make_rows(results)
    # The last task has fewer where Ctrl-C ended its rounds.
    repeats, threads = len(results[-1].outcomes[0].runs), number_of(options.threads, "thread")
    runs = f"median of {repeats} runs" if repeats > 1 else "1 run"
    console.print(_speed_table(rows, f"All tasks, {runs}, {threads}"))
    if len(results) > 1:
        console.print(_task_table(results))
    drafted = rows[1:]
    same, texts = sum(row.same for row in drafted), sum(row.texts for row in drafted)
    console.print(COLUMNS, style="dim")
    if not benches.refusal:
        console.print(
            f"{same} of {texts} texts equal those without drafts, token for token, in the\n"
            "bit-exact setting (flash attention, 1 thread)."
        )
    if not options.exact:
        _show_timed_equality(console, results, sum(row.timed_same for row in drafted), texts)
    if not benches.one and options.model is None:
        console.print(GAIN, style="dim")


def _speed_table(rows: Sequence[Row], title: str) -> Table:
    """Return a row per drafter, the one without drafts first."""
    from rich.text import Text

    columns = ("drafter", "tok/s", "speed-up", "acceptance", "tok/pass", "draft µs", "same")
    table = make_table(columns, title=title, text=columns[:1])
    for number, row in enumerate(rows):
        style = "green" if row.same == row.texts else "bold red"
        rest = (
            f"{row.acceptance:.0%}",
            f"{row.mean_accepted_length:.2f}",
            f"{row.draft_us:.0f}",
            Text(f"{row.same}/{row.texts}", style=style),
        )
        speedup = speedup_cell(row.speedup, is_plain=not number)
        speed = (row.drafter, f"{row.tokens_per_second:.0f}", speedup)
        table.add_row(*speed, *(rest if number else ()))
    return table


def _task_table(results: Sequence[TaskResult]) -> Table:
    """Return the speed-ups by task."""
    from ngramspec.lab.e2e.demo import make_rows

    columns = ("drafter", *(result.task.name for result in results))
    table = make_table(columns, title="Speed-up by task", text=columns[:1])
    by_task = [make_rows([result])[1:] for result in results]
    for rows in zip(*by_task, strict=True):
        table.add_row(rows[0].drafter, *(speedup_cell(row.speedup) for row in rows))
    return table


def _show_timed_equality(
    console: Console, results: Sequence[TaskResult], same: int, texts: int
) -> None:
    differences = [o.timed_difference for r in results for o in r.outcomes if o.timed_difference]
    margins = [
        abs(difference.margin) for difference in differences if difference.margin is not None
    ]
    text = f"Times are without flash attention; there {same} of {texts} are equal"
    if margins:
        text += f",\nthe others differ where two tokens are at most {max(margins):.3f} logits apart"
    console.print(f"{text}.")


def _print_json(results: Sequence[TaskResult], options: DemoOptions, benches: Benches) -> None:
    from ngramspec import __version__
    from ngramspec.lab.e2e.demo import as_json

    head = {"version": __version__, "model": benches.model.path.name}
    settings = {key: getattr(options, key) for key in ("repeats", "max_tokens", "threads", "exact")}
    body = {"settings": settings, "exact_batch": benches.exact_batch, **as_json(results)}
    print_json({**head, **body}, indent=1)


def _fail_on_difference(results: Sequence[TaskResult]) -> None:
    for result in results:
        for outcome in result.outcomes:
            if outcome.difference is not None:
                where = f"task {result.task.name}, {outcome.drafter}"
                why = page_url("explanation/exactness.md")
                raise Failure(f"{where}: {outcome.difference.line()}; see {why}")
