"""`ngramspec bench replay`: replay recorded outputs with drafters, without a model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.drafts import FILES, NO_DRAFTS
from ngramspec.cli.files import JsonOptions, tokenizer_flag
from ngramspec.cli.options import OLD_FILE, argument, command, flag, in_list
from ngramspec.cli.output import make_table, plain_console, print_json, size_text
from ngramspec.cli.progress import progress
from ngramspec.cli.recorded import (
    ABOUT_FILES,
    RecordedOptions,
    load_recorded,
    say_recorded,
    tokenizer_of,
)
from ngramspec.costs import PROFILES
from ngramspec.drafting.config import option_flag, options_of
from ngramspec.drafting.names import DEFAULT_ORDER, DEFAULT_SPEC, DRAFTER_NAMES, parse_names
from ngramspec.lab.costs import DEFAULT_PROFILE, saved_costs

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.lab.replay.sets import Outcome, Replays

WIDE = 112  # columns for counts and speed-ups in one table
COUNTS = ("tok/pass", "acceptance", "drafted", "µs/pass", "memory")
NOTE = (
    "tok/pass: generated tokens per pass of the target, its own included; acceptance: share of "
    "the drafted tokens that were accepted; drafted: per generated token; µs/pass: time in "
    "propose and accept; memory: the drafter's, without the text. Under the name of a profile: "
    "the modelled speed-up over no drafts."
)
BEST = " *: the best for these costs."
ADAPTIVE = " The drafts follow the costs; tok/pass, acceptance and drafted are those for {}."
MEAN = "geometric mean"
LEAST_GAIN = 1.01  # over the default, or over no drafts without it, to be worth an option
EPILOG = f"""\b
Examples:
  ngramspec bench replay benchmarks/data/traces
  ngramspec bench replay requests.jsonl --model model.gguf --drafter auto --drafter ngram-mod
  ngramspec bench replay traces --drafter ngram-map-k:size_n=8,size_m=32 --cold

TRACES are files, or folders of files. {ABOUT_FILES}

A pass over b tokens takes T(b): "h100-8b" 7.09 + 0.021 b ms, "moe" 1 + 0.12 b, "cpu"
1 + 0.35 b, "moe-a3b" 0.4 + 19.2 (1 - (31/32)^b). The modelled speed-up is tokens x T(1) /
(sum over passes of T(b)), without the time of drafting.
"""


@dataclass
class ReplayOptions(RecordedOptions, JsonOptions):
    """Options of `bench replay`."""

    # fmt: off
    traces: tuple[Path, ...] = argument(required=True)
    model: Path | None = tokenizer_flag("for traces with text; default: the embedded model")
    drafters: tuple[str, ...] = flag("--drafter --spec-type", "Comma-separated names, then "
        ":NAME=VALUE,... for parameters (repeatable). Without it: auto.", default=(),
        metavar="SPEC", shell_complete=in_list(*DRAFTER_NAMES, "auto"))
    cold: bool = flag("--cold", "A fresh drafter for every request instead of one that keeps what "
        "it learned.", default=False)
    limit: int | None = flag(
        "--limit", "Number of requests to read from the start of each set.", low=1)
    max_prompt: int = flag(
        "--max-prompt", "Tokens to keep from the end of a prompt.", default=12_000, low=1)
    max_output: int = flag(
        "--max-output", "Tokens to keep from the start of an output.", default=1_200, low=2)
    costs: tuple[Path, ...] = flag("--costs", "Costs that `bench calibrate -o` measured, as one "
        "more profile (repeatable).", default=(), type=OLD_FILE, metavar="FILE")
    profile: str | None = flag(
        "--profile", "Whose costs the advice is for. Default: the last of --costs, else those "
        "saved for --model by `bench calibrate` or `serve`, else cpu.", choices=tuple(PROFILES))


@command("replay", EPILOG)
def replay(options: ReplayOptions) -> None:
    """Replay recorded outputs as the target's greedy choice.

    Counts, without a model, the passes that drafters would have saved, and what that is worth at
    different costs of a pass. The last line advises the fastest of the drafters, with the options
    of `serve` that ask for it.
    """
    options.resolve()
    replays = _replay(options)
    last = list(replays.profiles)[-1]
    advice = advise(replays, options.profile or (DEFAULT_PROFILE if last in PROFILES else last))
    facts = {**replays.as_json(), "advice": advice}
    if options.as_json:
        print_json(facts)
    else:
        _show(replays)
        click.echo(advice_line(advice))


def _replay(options: ReplayOptions) -> Replays:
    from ngramspec.lab.recordings.traces import Cut
    from ngramspec.lab.replay.sets import load_profiles, replay_sets
    from ngramspec.lab.replay.subjects import DEFAULT, subject

    chosen = options.costs or options.profile
    saved = None if chosen else saved_costs(options.tokenizer).path
    profiles = load_profiles(options.costs if saved is None else [saved])
    specs = dict.fromkeys(options.drafters or DEFAULT)
    subjects = [subject(spec) for spec in specs]  # a wrong one ends it before files are read
    cut = Cut(options.limit or 0, options.max_prompt, options.max_output)
    loaded, problems = load_recorded(options.traces, options, cut)
    say_recorded(loaded, problems, brief=options.as_json)
    if any("static=" in spec for spec in specs):
        tokenizer = tokenizer_of(options.tokenizer, loaded)
        subjects = [subject(spec, tokenizer) for spec in specs]
    return replay_sets(
        [trace for one in loaded for trace in one.sets],
        subjects,
        profiles,
        cold=options.cold,
        progress=progress,
    )


def _show(replays: Replays) -> None:
    """Print a table per set, or one of all sets for a single drafter, with notes.

    Counts and speed-ups share a table if the console has WIDE columns.
    """
    console = plain_console()
    for table in _tables(replays, console.width >= WIDE):
        console.print(table)
    several = any(len(row) > 1 for row in replays.sets.values())
    adaptive = any(row[name].adaptive for row in replays.sets.values() for name in replays.drafters)
    note = NOTE + BEST * several + ADAPTIVE.format(next(iter(replays.profiles))) * adaptive
    console.print(note, style="dim")


def _tables(replays: Replays, wide: bool) -> Iterator[Table]:
    if len(replays.drafters) == 1 and not any(len(row) > 1 for row in replays.sets.values()):
        yield from _tables_of_one(replays, wide)
    else:
        for name in replays.sets:
            yield from _tables_of_set(replays, name, wide)
        if len(replays.sets) > 1:
            yield _mean_table(replays)


def _tables_of_one(replays: Replays, wide: bool) -> Iterator[Table]:
    (drafter,) = replays.drafters
    rows = {}
    for name, row in replays.sets.items():
        speedups = row[drafter].speedups(replays.profiles).values()
        rows[name] = (_counts(row[drafter]), [f"{value:.3f}" for value in speedups])
    if len(replays.sets) > 1:
        means = [f"{mean:.3f}" for mean in replays.means(drafter).values()]
        rows[MEAN] = ([""] * len(COUNTS), means)
    knowledge = "a fresh one for every request" if replays.cold else "knowledge kept in a set"
    yield from _split(replays, "set", f"{drafter}, {knowledge}", rows, wide)


def _tables_of_set(replays: Replays, name: str, wide: bool) -> Iterator[Table]:
    outcomes = replays.sets[name]
    speedups = {
        name: list(row.speedups(replays.profiles).values()) for name, row in outcomes.items()
    }
    rows = {name: (_counts(outcomes[name]), cells) for name, cells in _marked(speedups).items()}
    head = next(iter(outcomes.values())).first
    knowledge = "each with a fresh drafter" if replays.cold else "in order"
    title = f"{name}: {head.requests:,} requests {knowledge}"
    yield from _split(replays, "drafter", title, rows, wide)


def _split(
    replays: Replays,
    first: str,
    title: str,
    rows: Mapping[str, tuple[list[str], list[str]]],
    wide: bool,
) -> Iterator[Table]:
    """Yield one table with counts and speed-ups, or one for each."""
    parts = [(COUNTS, 0), (tuple(replays.profiles), 1)]
    for i, group in enumerate([parts] if wide else [[part] for part in parts]):
        names = [name for columns, _ in group for name in columns]
        table = _table([first, *names], "" if i else title)
        for name, cells in rows.items():
            shown = [cell for _, which in group for cell in cells[which]]
            if any(shown):
                table.add_row(name, *shown)
        yield table


def _table(columns: Sequence[str], title: str) -> Table:
    return make_table(columns, title=title, text=columns[:1])


def _counts(outcome: Outcome) -> list[str]:
    tally = outcome.first
    return [
        f"{tally.mean_accepted_length:.3f}",
        f"{tally.acceptance:.1%}",
        f"{tally.drafted_per_token:.2f}",
        f"{tally.us_per_step:.1f}",
        "-" if tally.nbytes is None else size_text(tally.nbytes),
    ]


def _mean_table(replays: Replays) -> Table:
    title = f"Modelled speed-up, geometric mean of {len(replays.sets)} sets"
    table = _table(["drafter", *replays.profiles], title)
    means = {name: list(replays.means(name).values()) for name in replays.drafters}
    for name, cells in _marked(means).items():
        table.add_row(name, *cells)
    return table


def _marked(rows: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """Return the cells of a table, the best of each column with a star."""
    best = [max(column) for column in zip(*rows.values(), strict=True)]
    return {
        name: [f"{x:.3f}{'*' if x == top else ' '}" for x, top in zip(row, best, strict=True)]
        for name, row in rows.items()
    }


def advise(replays: Replays, profile: str) -> dict[str, Any]:
    """Return the fastest that `serve` has options for, or no drafts, at the costs of a profile."""
    from ngramspec.lab.replay.subjects import DEFAULT

    speedups = {NO_DRAFTS: 1.0}
    for name in replays.drafters:
        if serve_words(name) is not None:
            speedups[name] = replays.mean_speedup(name, profile) or 1.0
    usual = next((name for name in DEFAULT if name in speedups), NO_DRAFTS)
    best = max(speedups, key=speedups.__getitem__)
    best = best if speedups[best] > LEAST_GAIN * speedups[usual] else usual
    words = shlex.join(serve_words(best) or [])
    speedup = round(speedups[best], 4)
    return {"costs": profile, "drafter": best, "modelled_speedup": speedup, "serve": words}


def serve_words(spec: str) -> list[str] | None:
    """Return the options of `serve` that ask for a specification, None if it lacks one."""
    from ngramspec.lab.replay.subjects import DEFAULT, parse_spec

    if spec == NO_DRAFTS:
        return ["--spec-type", NO_DRAFTS]
    names, params = parse_spec(spec)
    is_default = names in DEFAULT
    words = [] if is_default else ["--spec-type", names, "--policy", "fixed"]
    drafters = parse_names(DEFAULT_SPEC if is_default else names, DEFAULT_ORDER)
    for key, value in params.items():
        flags = [word for name, of, word in FILES.values() if name in drafters and of == key]
        having = [name for name in drafters if key in {one.name for one in options_of(name)}]
        flags += [option_flag(name, key, value) for name in having]
        if not flags:
            return None
        for word in flags:
            words += [word] if isinstance(value, bool) else [word, str(value)]
    return words


def advice_line(advice: dict[str, Any]) -> str:
    from ngramspec.lab.replay.subjects import DEFAULT

    what = {NO_DRAFTS: "no drafts", DEFAULT[0]: "the default"}
    drafter = what.get(advice["drafter"], advice["drafter"])
    times = f"{advice['modelled_speedup']:.3f} times the speed without drafts"
    options = f" Options of `serve`: {advice['serve']}" if advice["serve"] else ""
    return f"Advice at the costs of {advice['costs']}: {drafter}, {times}.{options}"
