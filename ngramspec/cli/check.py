"""`ngramspec check`: whether drafts are worth it for a model on this machine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from ngramspec._version import __version__
from ngramspec.cli.bench.e2e import WARM_UP, BenchOptions, open_bench
from ngramspec.cli.command import EXIT_INTERRUPTED, NOTE_MEASURED, Interrupt, interruptible
from ngramspec.cli.drafts import NO_DRAFTS
from ngramspec.cli.files import JsonOptions
from ngramspec.cli.options import command, flag, option_words
from ngramspec.cli.output import gain_line, make_table, plain_console, print_json, speedup_cell
from ngramspec.cli.progress import progress
from ngramspec.cli.target import TargetOptions
from ngramspec.drafting.names import DEFAULT_SPEC
from ngramspec.errors import BackendError

if TYPE_CHECKING:
    from ngramspec.arrays import TokenIds
    from ngramspec.engine.calibration import Calibration
    from ngramspec.lab.e2e.bench import Bench
    from ngramspec.lab.e2e.check import Finding, Verdict
    from ngramspec.lab.e2e.tasks import Task
    from ngramspec.llamacpp.target import LlamaTarget

SIZES = (1, 2, 4, 8, 16)  # tokens of the passes that are timed
CONTEXT = 128  # tokens before them
ROUNDS = 5  # of these passes
FOR_PASSES = 0.15  # of the time, at most
FEWEST_PASSES = 200  # of a server, for a verdict
SERVER_SECONDS = 30.0  # for its answer
LONGEST = 80  # tokens of an answer: past its first words, and short enough for a slow model
COLUMNS = ("work", "temp.", "without", "with drafts", "times", "rounds", "of", "accepted")
NOTE = """\
without, with drafts: tokens/s after the prompt, medians; times: speed-up,
median and range of the rounds; accepted: of the drafted tokens. Each run has a
fresh drafter: text that was asked for before comes faster still.
"""
SHADOW_COLUMNS = ("drafters", "times", "tok/pass", "accepted", "saved s", "passes")
SHADOW_NOTE = """\
times: as fast as without drafts, by what passes cost on the server's machine;
tok/pass: tokens of one slot in a pass with drafts; accepted: of the drafted tokens.
"""
EPILOG = """\b
Examples:
  ngramspec check
  ngramspec check --model model.gguf -t 4 -fa on --prompts mine.txt --prompts chats.jsonl
  ngramspec check --model model.gguf --seconds 300 --json > check.json
  ngramspec check --server http://localhost:8080

Give the options that you would start `ngramspec serve` with. Without --prompts it asks
for a copy, an edit and a story. Ctrl-C prints what was measured.
"""
# What --help shows.
EVERYDAY = (
    *("model", "hf_repo", "ctx_size", "threads", "flash_attn", "n_gpu_layers", "exact", "files"),
    *("chat", "seconds", "server", "as_json"),
)


@dataclass
class CheckOptions(BenchOptions, JsonOptions):
    """Options of `check`."""

    # fmt: off
    ctx_size: int | None = flag("-c --ctx-size", "Context that the server is to have: less of the "
        "model may fit on a GPU beside a large one.", low=0)
    seconds: float = flag(
        "--seconds", "Most time, once the model is loaded.", default=100, low=0, min_open=True)
    server: str | None = flag("--server", "Measure nothing: ask a server that runs with --policy "
        "shadow what drafts would have brought on its traffic so far.", metavar="URL")
    api_key: str | None = flag("--api-key", "Key for --server.", env="API_KEY", metavar="KEY")
    # fmt: on
    n_predict: int = LONGEST


@command("check", EPILOG, everyday=EVERYDAY)
def check(options: CheckOptions) -> None:
    """Tell whether drafts are worth it for a model on this machine.

    Measures in two minutes what passes over several tokens cost, which bounds what drafts can give,
    and the speed with and without drafts, at temperature 0 and at the server's default. Prints a
    verdict and the line to start the server with, or that the machine was too busy for one.
    With --server it asks a server that runs instead.
    """
    if options.server is not None:
        _check_server(options.server, options.api_key, as_json=options.as_json)
        return
    from ngramspec.lab.e2e.bench import PLAIN, parse_mode
    from ngramspec.lab.e2e.check import conclude
    from ngramspec.lab.e2e.tasks import KINDS, load_tasks
    from ngramspec.llamacpp.saved_costs import overload

    options.resolve()
    tasks = load_tasks(options.files) if options.files else KINDS
    modes = [parse_mode(PLAIN), parse_mode(DEFAULT_SPEC)]
    with (
        open_bench(options, tasks, modes) as (bench, target, prompts),
        interruptible(NOTE_MEASURED) as interrupt,
    ):
        busy = overload()  # by others, before this one begins
        passes, findings = _measure(options.seconds, tasks, bench, target, prompts, interrupt)
        name = target.model.path.name
    verdict = conclude(findings, busy)
    served = {"ctx_size", *(one.name for one in fields(TargetOptions))}
    words = ["ngramspec", "serve", *option_words(served)]
    line = shlex.join(words + ["--spec-type", NO_DRAFTS] * (verdict.answer == "no"))
    if options.as_json:
        print_json({
            "version": __version__,
            "model": name,
            "answer": verdict.answer,
            "verdict": verdict.text,
            "busy": verdict.busy,
            "noise": round(verdict.noise, 4),
            "serve": line,
            "passes": passes.rows(),
            "findings": [finding.as_json() for finding in findings]
        })  # fmt: skip
    else:
        _show(name, passes, findings, verdict)
        if verdict.answer != "unknown":
            click.echo(f"  {line}")
    if interrupt.requested:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _check_server(url: str, key: str | None, *, as_json: bool) -> None:
    """Print what drafts would have brought on a server's traffic."""
    drafting = _props(url, key).get("speculative") or {}
    shadows = drafting.get("shadow", []) if isinstance(drafting, dict) else []
    if as_json:
        print_json({"version": __version__, "server": url, "shadow": shadows})
        return
    if not shadows:
        click.echo(
            f"No conclusion: {url} has judged no drafts. Start it with --policy shadow, or send "
            'requests with "speculative": {"shadow": true}.'
        )
        return
    table = make_table(SHADOW_COLUMNS, text=SHADOW_COLUMNS[:1])
    for one in shadows:
        table.add_row(
            one["drafters"],
            speedup_cell(one["speedup"]),
            f"{one['mean_accepted_length']:.2f}",
            f"{one['accepted_tokens']}/{one['draft_tokens']}",
            f"{one['saved_seconds']:.1f}",
            str(one["passes"]),
        )
    console = plain_console()
    console.print(table)
    console.print(SHADOW_NOTE, style="dim")
    console.print(_shadow_verdict(shadows), style="bold")


def _shadow_verdict(shadows: Sequence[dict[str, Any]]) -> str:
    from ngramspec.lab.e2e.check import LEAST_GAIN

    best = max(shadows, key=lambda one: one["speedup"])
    if best["passes"] < FEWEST_PASSES:
        return f"No conclusion: {best['passes']} passes are few; ask again after more requests."
    gain = f"{best['drafters']} would have made answers {best['speedup']:.2f} times as fast"
    return f"Yes: {gain}." if best["speedup"] >= LEAST_GAIN else f"No: at best, {gain}."


def _props(url: str, key: str | None) -> dict[str, Any]:
    """Return what a server says of itself.

    Raises:
        BackendError: It does not answer, or as no such server does.
    """
    import json
    import urllib.error
    import urllib.request

    address = f"{url.rstrip('/')}/props"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--server must be a URL such as http://localhost:8080, got {url}")
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=SERVER_SECONDS) as answer:
            props = json.load(answer)
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            raise BackendError(f"{address}: {error}") from None
        raise BackendError(f"{address}: {getattr(error, 'reason', error)}") from None
    if not isinstance(props, dict):
        raise BackendError(f"{address}: not what an ngramspec server answers")
    return props


def _measure(
    seconds: float,
    tasks: Sequence[Task],
    bench: Bench,
    target: LlamaTarget,
    prompts: Sequence[TokenIds],
    interrupt: Interrupt,
) -> tuple[Calibration, list[Finding]]:
    """Time passes, then answers, as long as there is time."""
    from ngramspec.engine import Sampling
    from ngramspec.engine.calibration import calibrate
    from ngramspec.lab.e2e.check import measure
    from ngramspec.lab.e2e.tasks import sample_tokens

    begun = time.monotonic()
    with progress("timing passes", int(seconds)) as steps:

        def advance(name: str = "timing passes") -> None:
            steps.title = name
            steps(min(int(time.monotonic() - begun), steps.total) - steps.done)

        def stopped(share: float = 1.0) -> bool:
            return interrupt.requested or time.monotonic() - begun > share * seconds

        most = min(target.max_batch, target.exact_batch or target.max_batch)
        sizes = [size for size in SIZES if size <= most]
        tokens = sample_tokens(target.model, min(CONTEXT, target.context_size))
        passes = calibrate(
            target, tokens, sizes, ROUNDS, advance=advance, stopped=lambda: stopped(FOR_PASSES)
        )
        advance("warming up")
        if not stopped():
            bench.warm_up(prompts[0][:WARM_UP], Sampling(temperature=0))
        findings = measure(bench, tasks, prompts, LONGEST, advance=advance, stopped=stopped)
    return passes, findings


def _show(model: str, passes: Calibration, findings: Sequence[Finding], verdict: Verdict) -> None:
    console = plain_console()
    console.print(model, style="bold", soft_wrap=True)
    rows = passes.rows()
    if rows and rows[0]["relative"]:
        table = make_table(["tokens in a pass", *(str(row["tokens"]) for row in rows)], gap=2,
                           text=["tokens in a pass"])  # fmt: skip
        table.add_row("ms", *(f"{1e3 * row['seconds']:.1f}" for row in rows))
        table.add_row("passes over one", *(f"{row['relative']:.1f}" for row in rows))
        console.print(table)
        if not verdict.busy:
            most = gain_line(passes.table(model)) or "no draft can make answers faster here"
            console.print(f"So {most}.")
    if findings:
        table = make_table(COLUMNS, text=COLUMNS[:1])
        for one in findings:
            outcome, (low, high) = one.outcome, one.bounds
            table.add_row(
                one.name,
                f"{one.temperature:g}",
                f"{one.plain_median:.1f}",
                f"{outcome.tokens_per_second:.1f}",
                "unclear" if one.change == "unclear" else speedup_cell(one.ratio),
                f"{low:.2f} to {high:.2f}",
                str(len(outcome.ratios)),
                f"{outcome.accepted}/{outcome.drafted}",
            )
        console.print(table)
        console.print(NOTE, style="dim")
    console.print(verdict.text, style="bold")
