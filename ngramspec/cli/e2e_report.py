"""What `ngramspec bench e2e` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from ngramspec.bench.e2e import PLAIN, Outcome, Run
from ngramspec.cli.cache_report import plain_console, plain_table
from ngramspec.cli.report import speedup_cell

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.cli.e2e_run import PromptResult

COLUMNS = (("prompt", False), ("drafter", False), ("tok/s", True), ("ratio", True),
           ("accepted/drafted", True), ("tok/pass", True), ("same", True))  # fmt: skip
NOTE = """\
tok/s: after the prompt, median; ratio: over plain decoding, median of the
rounds, of all prompts their geometric mean; accepted/drafted: tokens of all
runs; tok/pass: tokens per decode of the model; same: whether the text is the
plain one, or else the first other token.
"""
DIFFERS = """\
Texts part where rounding decides between two tokens: --exact is without that,
and docs/exactness.md says why."""


@dataclass(frozen=True)
class Total:
    """One drafter over all prompts.

    ratio: geometric mean of the prompts' ratios, None where nothing was generated.
    same: texts equal to the plain ones, of `texts`.
    """

    drafter: str
    tokens_per_second: float
    ratio: float | None
    drafted: int
    accepted: int
    same: int
    texts: int


def totals(found: Sequence[PromptResult]) -> list[Total]:
    """Return one row per drafter, the one without drafts first."""
    columns = zip(*(result.outcomes for result in found), strict=True)
    return [_total(outcomes) for outcomes in columns]


def _total(outcomes: Sequence[Outcome]) -> Total:
    ratios = [outcome.ratio for outcome in outcomes if outcome.ratio]
    made = [outcome for outcome in outcomes if outcome.tokens_per_second]
    tokens = [len(outcome.runs[0].token_ids) - 1 for outcome in made]
    pairs = zip(tokens, made, strict=True)
    seconds = sum(count / outcome.tokens_per_second for count, outcome in pairs)
    return Total(
        drafter=outcomes[0].mode.spec,
        tokens_per_second=sum(tokens) / seconds if seconds else 0.0,
        ratio=geometric_mean(ratios) if ratios else None,
        drafted=sum(outcome.drafted for outcome in outcomes),
        accepted=sum(outcome.accepted for outcome in outcomes),
        same=sum(outcome.difference is None for outcome in outcomes),
        texts=len(outcomes),
    )


def as_json(found: Sequence[PromptResult], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, as plain data."""
    from ngramspec import __version__
    from ngramspec.models import embedded_model

    keys = ("repeats", "n_predict", "temp", "seed", "policy", "max_draft", "exact", "threads",
            "flash_attn", "cache_type_k", "cache_type_v", "n_gpu_layers")  # fmt: skip
    return {
        "version": __version__,
        "model": str(options["model"] or embedded_model()),
        "settings": {key: options[key] for key in keys},
        "identical": all(row.same == row.texts for row in totals(found)),
        "summary": [_total_json(row) for row in totals(found)],
        "prompts": [
            {
                "name": result.name,
                "prompt_tokens": result.prompt_len,
                "text": result.text,
                "runs": [_outcome_json(outcome) for outcome in result.outcomes],
            }
            for result in found
        ],
    }


def _total_json(row: Total) -> dict[str, Any]:
    return {
        "drafter": row.drafter,
        "tokens_per_second": round(row.tokens_per_second, 2),
        "ratio": _rounded(row.ratio),
        "drafted": row.drafted,
        "accepted": row.accepted,
        "identical_texts": row.same,
        "texts": row.texts,
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    drafted = outcome.drafted
    return {
        "drafter": outcome.mode.spec,
        "parameters": {name: {k: _plain(v) for k, v in given.items()}
                       for name, given in outcome.mode.params.items()},
        "tokens_per_second": round(outcome.tokens_per_second, 2),
        "ratio": _rounded(outcome.ratio),
        "ratios": [round(ratio, 4) for ratio in outcome.ratios],
        "drafted": drafted,
        "accepted": outcome.accepted,
        "acceptance": round(outcome.accepted / drafted, 4) if drafted else 0.0,
        "mean_accepted_length": round(outcome.mean_accepted_length, 4),
        "identical": outcome.difference is None,
        "first_difference": outcome.difference,
        "runs": [_run_json(run) for run in outcome.runs],
    }  # fmt: skip


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "tokens": len(run.token_ids),
        "seconds": round(run.seconds, 6),
        "prompt_seconds": round(run.prompt_seconds, 6),
        "draft_seconds": round(run.draft_seconds, 6),
        "steps": run.steps,
        "drafted": run.drafted,
        "accepted": run.accepted,
        "finish_reason": run.finish_reason,
    }


def show(found: Sequence[PromptResult], options: Mapping[str, Any]) -> None:
    """Print the table of all prompts."""
    console = plain_console()
    table = plain_table(COLUMNS)
    table.padding = (0, 1, 0, 0)
    for result in found:
        for number, outcome in enumerate(result.outcomes):
            _add(table, "" if number else result.name, outcome)
        table.add_section()
    rows = totals(found)
    if len(found) > 1:
        for number, row in enumerate(rows):
            _add_total(table, "" if number else "all", row)
    console.print(table)
    console.print(NOTE, style="dim")
    if any(row.same < row.texts for row in rows) and not options["exact"]:
        console.print(DIFFERS)


def _add(table: Table, name: str, outcome: Outcome) -> None:
    from rich.text import Text

    difference = outcome.difference
    shares = ("", "", "")
    if outcome.mode.spec != PLAIN:
        same = "yes" if difference is None else f"no: {difference + 1}"
        passes = f"{outcome.mean_accepted_length:.2f}"
        shares = (f"{outcome.accepted}/{outcome.drafted}", passes, same)
    _add_row(
        table, name, outcome.mode.spec, outcome.tokens_per_second, outcome.ratio, map(Text, shares)
    )


def _add_total(table: Table, name: str, row: Total) -> None:
    shares = ("", "", "")
    if row.drafter != PLAIN:
        shares = (f"{row.accepted}/{row.drafted}", "", f"{row.same}/{row.texts}")
    _add_row(table, name, row.drafter, row.tokens_per_second, row.ratio, shares)


def _add_row(
    table: Table, name: str, drafter: str, rate: float, ratio: float | None, rest: Any
) -> None:
    shown = "-" if ratio is None else speedup_cell(ratio, drafter)
    table.add_row(name, drafter, f"{rate:.1f}", shown, *rest)


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)
