"""`ngramspec demo`: real speculative decoding; on the embedded model in under two minutes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ngramspec._version import __version__
from ngramspec.cli.command import EXIT_INTERRUPTED, NOTE_MEASURED, Failure, Interrupt, interruptible
from ngramspec.cli.files import JsonOptions
from ngramspec.cli.model import ModelOptions
from ngramspec.cli.options import command, flag, in_list
from ngramspec.cli.output import (
    ACCEPTED_STYLE,
    CLOSE,
    OPEN,
    OWN_STYLE,
    decode_pieces,
    has_colour,
    make_table,
    marked_text,
    number_of,
    print_json,
    speedup_cell,
    styled,
)
from ngramspec.cli.progress import progress
from ngramspec.drafting.names import DRAFTER_NAMES, parse_names
from ngramspec.lab.e2e.tasks import TASK_NAMES, TASKS
from ngramspec.messages import page_url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec.lab.e2e.bench import PromptResult
    from ngramspec.lab.e2e.demo import Benches
    from ngramspec.lab.e2e.tasks import Task

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
model on a CPU the bit-exact setting has no such gain: `ngramspec bench e2e
--exact` times it."""


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


@command("demo", EPILOG)
def demo(options: DemoOptions) -> None:
    """Show what six drafters do for a model.

    A model of 7.2 million parameters that ships with the package, or yours, edits and copies code,
    greedily, without drafts and with each drafter. The texts must be equal token for token in
    llama.cpp's bit-exact setting, or the exit code is 1; a line tells where this machine has none.
    The times are without flash attention, in interleaved runs on the CPU, with a fresh drafter
    each. llama.cpp's five drafters have sizes for short texts and fixed lengths here; `ngramspec
    bench e2e` runs them at their defaults.
    """
    from rich.console import Console

    from ngramspec.lab.e2e.bench import report
    from ngramspec.lab.e2e.demo import DRAFTERS, open_benches

    options.resolve()
    specs = options.drafters or DRAFTERS
    drafters = tuple(dict.fromkeys(",".join(parse_names(spec, "priority")) for spec in specs))
    console = Console(highlight=False)
    with contextlib.ExitStack() as stack:
        with progress("loading and testing") if options.model else contextlib.nullcontext():
            benches = stack.enter_context(open_benches(drafters, options.threads, options.model))
        if benches.refusal:
            click.echo(f"texts are compared as they are timed: {benches.refusal}", err=True)
        if not options.as_json:
            _show_head(console, benches.model.path.name)
        with interruptible(NOTE_MEASURED) as interrupt:
            results = list(_results(benches, console, options, interrupt))
    exact, timed = [pair[0] for pair in results], [pair[1] for pair in results]
    if not results:
        click.echo("nothing was measured", err=True)
    elif options.as_json:
        settings = {key: getattr(options, key) for key in ("repeats", "max_tokens", "threads")}
        facts = {
            "version": __version__,
            "model": benches.model.path.name,
            "settings": settings,
            "exact_batch": benches.exact_batch,
            "exact": report(exact),
            "timed": report(timed),
        }
        print_json(facts, indent=1)
    else:
        _show_tables(console, exact, timed, options, benches)
    if not benches.refusal:
        _fail_on_difference(exact)
    if interrupt.requested:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _results(
    benches: Benches, console: Console, options: DemoOptions, interrupt: Interrupt
) -> Iterator[tuple[PromptResult, PromptResult]]:
    """Yield what came of each task in the bit-exact setting, and as it is timed."""
    from ngramspec.lab.e2e.bench import run_tasks, tokenize_tasks
    from ngramspec.lab.e2e.demo import GREEDY

    tasks = [task for task in TASKS if task.name in (options.tasks or TASK_NAMES)]
    prompts = tokenize_tasks(benches.model, tasks)
    rounds = {benches.exact: 1, benches.timed: options.repeats}  # both are one if none is exact
    num_runs = len(benches.modes) * sum(rounds.values()) * len(tasks)
    with progress("starting", num_runs) as advance:
        all_results = run_tasks(
            rounds,
            benches.model,
            tasks,
            prompts,
            begin=advance.name,
            max_tokens=options.max_tokens,
            sampling=GREEDY,
            advance=advance,
            stopped=lambda: interrupt.requested,
        )
        for task, results in zip(tasks, all_results, strict=False):
            if not options.as_json:
                with advance.paused():
                    _show_text(console, benches, task, results[0])
            yield results[0], results[-1]


def _show_head(console: Console, model: str) -> None:
    from rich.text import Text

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


def _show_text(console: Console, benches: Benches, task: Task, result: PromptResult) -> None:
    """Print one task's request and answer, accepted draft tokens in colour or between marks."""
    from rich.rule import Rule
    from rich.text import Text

    outcome = result.outcomes[-1]
    run = outcome.runs[0]
    pieces = decode_pieces(benches.model.piece, run.token_ids, run.guessed)
    console.print(Rule(Text(task.title, style="bold"), align="left", style="dim"))
    console.print(Text(f"> {task.request}", style="cyan"))
    coloured = has_colour(console)
    text = Text.assemble(*styled(pieces)) if coloured else Text(marked_text(pieces))
    console.print(text, soft_wrap=True)
    share = run.accepted / max(1, len(run.token_ids))
    note = f"{len(run.token_ids)} tokens, {share:.0%} of them from drafts, {run.steps} passes"
    console.print(Text(f"{note} ({outcome.mode.spec})\n", style="dim"))


def _show_tables(
    console: Console,
    exact: Sequence[PromptResult],
    timed: Sequence[PromptResult],
    options: DemoOptions,
    benches: Benches,
) -> None:
    from ngramspec.lab.e2e.bench import totals

    same = [row.same for row in totals(exact)]
    # The last task has fewer where Ctrl-C ended its rounds.
    repeats, threads = len(timed[-1].outcomes[0].runs), number_of(options.threads, "thread")
    runs = f"median of {repeats} runs" if repeats > 1 else "1 run"
    console.print(_speed_table(timed, same, f"All tasks, {runs}, {threads}"))
    if len(timed) > 1:
        console.print(_task_table(timed))
    console.print(COLUMNS, style="dim")
    drafted = totals(timed)[1:]
    texts = sum(row.texts for row in drafted)
    if not benches.refusal:
        console.print(
            f"{sum(same[1:])} of {texts} texts equal those without drafts, token for token, in the"
            "\nbit-exact setting (flash attention, 1 thread)."
        )
    equal = sum(row.same for row in drafted)
    console.print(f"Times are without flash attention; there {equal} of {texts} are equal.")
    if not benches.refusal and options.model is None:
        console.print(GAIN, style="dim")


def _speed_table(results: Sequence[PromptResult], same: Sequence[int], title: str) -> Table:
    """Return a row per drafter, the one without drafts first. same: texts that are equal."""
    from rich.text import Text

    from ngramspec.lab.e2e.bench import totals

    columns = ("drafter", "tok/s", "speed-up", "acceptance", "tok/pass", "draft µs", "same")
    table = make_table(columns, title=title, text=columns[:1])
    for number, (row, equal) in enumerate(zip(totals(results), same, strict=True)):
        style = "green" if equal == row.texts else "bold red"
        rest = (
            f"{row.accepted / max(1, row.drafted):.0%}",
            f"{row.mean_accepted_length:.2f}",
            f"{row.draft_us:.0f}",
            Text(f"{equal}/{row.texts}", style=style),
        )
        speedup = speedup_cell(row.ratio or 0.0, is_plain=not number)
        speed = (row.drafter, f"{row.tokens_per_second:.0f}", speedup)
        table.add_row(*speed, *(rest if number else ()))
    return table


def _task_table(results: Sequence[PromptResult]) -> Table:
    columns = ("drafter", *(result.name for result in results))
    table = make_table(columns, title="Speed-up by task", text=columns[:1])
    for outcomes in list(zip(*(result.outcomes for result in results), strict=True))[1:]:
        speedups = (speedup_cell(outcome.ratio or 0.0) for outcome in outcomes)
        table.add_row(outcomes[0].mode.spec, *speedups)
    return table


def _fail_on_difference(results: Sequence[PromptResult]) -> None:
    for result in results:
        for outcome in result.outcomes:
            if outcome.difference is not None:
                where = f"task {result.name}, {outcome.mode.spec}"
                parts = f"the texts part at token {outcome.difference + 1}"
                raise Failure(f"{where}: {parts}; see {page_url('explanation/exactness.md')}")
