"""The demo's results: rows, tables, coloured text, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ngramspec.bench.e2e import PLAIN
from ngramspec.cli.measure import Outcome, TaskResult, settings_of
from ngramspec.cli.text import marked_text, plain_text, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True)
class Row:
    """One drafter over some tasks.

    speedup: tokens/s over those without drafts in the same run. draft_us: per step.
    same, timed_same: texts equal to those without drafts, bit-exact and as timed, of `texts`.
    """

    drafter: str
    tokens_per_second: float
    speedup: float
    acceptance: float
    mean_accepted_length: float
    draft_us: float
    same: int
    timed_same: int
    texts: int


def make_rows(results: Sequence[TaskResult]) -> list[Row]:
    """Return one row per drafter over all the given tasks, the one without drafts first."""
    columns = list(zip(*(result.outcomes for result in results), strict=True))
    base = _rate(columns[0])
    return [_row(outcomes, base) for outcomes in columns]


def _rate(outcomes: Iterable[Outcome]) -> float:
    outcomes = list(outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return sum(outcome.tokens for outcome in outcomes) / seconds if seconds > 0 else 0.0


def _row(outcomes: Sequence[Outcome], base: float) -> Row:
    runs = [outcome.runs[0] for outcome in outcomes]
    steps = sum(run.steps for run in runs)
    drafted = sum(run.drafted for run in runs)
    rate = _rate(outcomes)
    return Row(
        drafter=outcomes[0].drafter,
        tokens_per_second=rate,
        speedup=rate / base if base else 0.0,
        acceptance=sum(run.accepted for run in runs) / drafted if drafted else 0.0,
        mean_accepted_length=sum(o.tokens for o in outcomes) / steps if steps else 0.0,
        draft_us=1e6 * sum(o.draft_seconds for o in outcomes) / steps if steps else 0.0,
        same=sum(outcome.parting is None for outcome in outcomes),
        timed_same=sum(outcome.timed_parting is None for outcome in outcomes),
        texts=len(outcomes),
    )


def has_colour(console: Console) -> bool:
    """Tell whether colours can be seen."""
    return console.color_system is not None and not console.no_color


def show_text(console: Console, result: TaskResult, outcome: Outcome) -> None:
    """Print one task's request and answer, accepted draft tokens in colour or between marks."""
    from rich.rule import Rule
    from rich.text import Text

    run = outcome.exact
    console.print(Rule(Text(result.task.title, style="bold"), align="left", style="dim"))
    console.print(Text(f"> {result.task.request}", style="cyan"))
    if not has_colour(console):
        console.print(Text(marked_text(outcome.pieces)), soft_wrap=True)
    else:
        console.print(Text.assemble(*styled(outcome.pieces)), soft_wrap=True)
    share = run.accepted / max(1, len(run.token_ids))
    note = f"{len(run.token_ids)} tokens, {share:.0%} of them from drafts, {run.steps} decodes"
    console.print(Text(f"{note} ({outcome.drafter})\n", style="dim"))


def speed_table(rows: Sequence[Row], title: str) -> Table:
    """Return the table of all drafters."""
    table = _table(title, ["tok/s", "speed-up", "accepted", "mean len", "draft µs", "same"])
    for row in rows:
        cells: list[str | Text] = ["", "", ""]
        if row.drafter != PLAIN:
            mean = f"{row.mean_accepted_length:.2f}"
            cells = [f"{row.acceptance:.0%}", mean, f"{row.draft_us:.0f}"]
        same = "" if row.drafter == PLAIN else _same_cell(row)
        speed: list[str | Text] = [
            f"{row.tokens_per_second:.0f}",
            speedup_cell(row.speedup, row.drafter),
        ]
        table.add_row(row.drafter, *speed, *cells, same)
    return table


def task_table(results: Sequence[TaskResult]) -> Table:
    """Return the speed-ups by task."""
    table = _table("Speed-up by task", [result.task.name for result in results])
    by_task = [make_rows([result]) for result in results]
    for i, row in enumerate(by_task[0]):
        if row.drafter != PLAIN:
            cells = (speedup_cell(rows[i].speedup, row.drafter) for rows in by_task)
            table.add_row(row.drafter, *cells)
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, 0, 0, 1)
    table.add_column("drafter", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def speedup_cell(speedup: float, drafter: str) -> Text:
    """Return a speed-up in words and colour: faster, slower, neither."""
    from rich.text import Text

    style = "green" if speedup >= 1.05 else "red" if speedup <= 0.95 else ""
    return Text(f"{speedup:.2f}x", style="" if drafter == PLAIN else style)


def _same_cell(row: Row) -> Text:
    from rich.text import Text

    style = "green" if row.same == row.texts else "bold red"
    return Text(f"{row.same}/{row.texts}", style=style)


def as_json(results: Sequence[TaskResult]) -> dict[str, Any]:
    """Return everything that was measured, as plain data."""
    return {
        "identical": all(o.parting is None for r in results for o in r.outcomes),
        "summary": [_row_json(row) for row in make_rows(results)],
        "tasks": [_task_json(result) for result in results],
    }


def _task_json(result: TaskResult) -> dict[str, Any]:
    rows = make_rows([result])
    return {
        "name": result.task.name,
        "request": result.task.request,
        "prompt_tokens": result.prompt_len,
        "text": plain_text(result.outcomes[0].pieces),
        "runs": [
            _outcome_json(outcome, row) for outcome, row in zip(result.outcomes, rows, strict=True)
        ],
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "drafter": row.drafter,
        "tokens_per_second": round(row.tokens_per_second, 2),
        "speedup": round(row.speedup, 4),
        "acceptance": round(row.acceptance, 4),
        "mean_accepted_length": round(row.mean_accepted_length, 4),
        "draft_us_per_step": round(row.draft_us, 2),
        "texts": row.texts,
        "identical_texts": row.same,
        "identical_timed_texts": row.timed_same,
    }


def _outcome_json(outcome: Outcome, row: Row) -> dict[str, Any]:
    run = outcome.runs[0]
    partings = {"parting": outcome.parting, "timed_parting": outcome.timed_parting}
    return {
        **_row_json(row),
        "parameters": {} if outcome.drafter == PLAIN else settings_of(outcome.drafter),
        "tokens": len(run.token_ids),
        "steps": run.steps,
        "drafts": run.drafts,
        "drafted": run.drafted,
        "accepted": run.accepted,
        "finish_reason": run.finish_reason,
        "seconds": [round(run.seconds, 6) for run in outcome.runs],
        "prompt_seconds": [round(run.prompt_seconds, 6) for run in outcome.runs],
        **{
            name: None if it is None else {"position": it.position, "margin": it.margin}
            for name, it in partings.items()
        },
    }
