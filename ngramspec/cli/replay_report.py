"""What `ngramspec bench replay` prints: tables that fit a terminal of 80 columns, or wider ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from ngramspec.bench.outcome import Outcome
from ngramspec.bench.peers import ORACLE, PEERS
from ngramspec.bench.summary import Replays, Versus, compare
from ngramspec.cli import cache_report
from ngramspec.cli.sizes import size_text

WIDE = 112  # columns for counts and speed-ups in one table
COUNTS = ("tok/pass", "accepted", "drafted", "µs/pass", "memory")
NOTE = (
    "tok/pass: generated tokens per pass of the target, its own included; accepted: share of the "
    "drafted tokens that were right; drafted: per generated token; µs/pass: time in propose and "
    "accept; memory: the drafter's, without the text. Under the name of a profile: the modelled "
    "speed-up over plain decoding."
)
BEST = " *: the best for these costs, the oracle aside."
ADAPTIVE = " The drafts follow the costs; tok/pass, accepted and drafted are those for {}."
RECORDED = " Peers from a record have the times of the machine that it was made on."
MEAN = "geometric mean"


def show_replays(found: Replays, recorded: bool = False) -> None:
    """Print a table per set, or one of all sets for a single drafter, and what they say."""
    console = cache_report.plain_console()
    for table in _tables(found, console.width >= WIDE):
        console.print(table)
    several = len(found.drafters) + len(found.peers) > 1
    adaptive = any(row[name].adaptive for row in found.sets.values() for name in found.drafters)
    note = NOTE + BEST * several + ADAPTIVE.format(next(iter(found.profiles))) * adaptive
    console.print(note + RECORDED * recorded, style="dim")
    _show_missing(console, found)


def _tables(found: Replays, wide: bool) -> Iterator[Table]:
    if len(found.drafters) + len(found.peers) == 1:
        yield from _tables_of_one(found, wide)
    else:
        for name in found.sets:
            yield from _tables_of_set(found, name, wide)
        if len(found.sets) > 1:
            yield _mean_table(found)
    for drafter in found.drafters:
        versus = compare(found, drafter)
        if versus:
            yield _versus_table(drafter, versus)
    if found.growth:
        yield _growth_table(found)


def _tables_of_one(found: Replays, wide: bool) -> Iterator[Table]:
    (drafter,) = found.drafters
    rows = {}
    for name, row in found.sets.items():
        speedups = row[drafter].speedups(found.profiles).values()
        rows[name] = (_counts(row[drafter]), [f"{value:.3f}" for value in speedups])
    if len(found.sets) > 1:
        means = [_number(found.mean_speedup(drafter, profile)) for profile in found.profiles]
        rows[MEAN] = ([""] * len(COUNTS), means)
    knowledge = "a fresh one for every request" if found.cold else "knowledge kept in a set"
    yield from _split(found, "set", f"{drafter}, {knowledge}", rows, wide)


def _tables_of_set(found: Replays, name: str, wide: bool) -> Iterator[Table]:
    outcomes = found.sets[name]
    best = {profile: _best(found, name, profile) for profile in found.profiles}
    rows = {}
    for subject in (*found.drafters, *found.peers):
        if subject in outcomes:
            speedups = outcomes[subject].speedups(found.profiles)
            shown = [_marked(value, best[p] == subject) for p, value in speedups.items()]
            rows[subject] = (_counts(outcomes[subject]), shown)
    head = next(iter(outcomes.values())).first
    knowledge = "each with a fresh drafter" if found.cold else "in order"
    title = f"{name}: {head.requests:,} requests {knowledge}"
    yield from _split(found, "drafter", title, rows, wide)


def _split(
    found: Replays,
    first: str,
    title: str,
    rows: Mapping[str, tuple[list[str], list[str]]],
    wide: bool,
) -> Iterator[Table]:
    """Yield one table with counts and speed-ups, or one for each."""
    parts = [(COUNTS, 0), (tuple(found.profiles), 1)]
    for i, group in enumerate([parts] if wide else [[part] for part in parts]):
        names = [name for columns, _ in group for name in columns]
        table = _table([(first, False), *((name, True) for name in names)], "" if i else title)
        for name, cells in rows.items():
            shown = [cell for _, which in group for cell in cells[which]]
            if any(shown):
                table.add_row(name, *shown, style=_style(found, name))
        yield table


def _table(columns: Sequence[tuple[str, bool]], title: str) -> Table:
    table = cache_report.plain_table(columns, title)
    table.padding = (0, 1, 0, 0)
    return table


def _counts(outcome: Outcome) -> list[str]:
    tally = outcome.first
    return [
        f"{tally.mean_accepted_length:.3f}",
        f"{tally.acceptance:.1%}",
        f"{tally.drafted_per_token:.2f}",
        f"{tally.us_per_step:.1f}",
        "-" if tally.nbytes is None else size_text(tally.nbytes),
    ]


def _mean_table(found: Replays) -> Table:
    columns = [("drafter", False), *((profile, True) for profile in found.profiles)]
    title = f"Modelled speed-up, geometric mean of {len(found.sets)} sets"
    table = _table(columns, title)
    subjects = (*found.drafters, *found.peers)
    means = {p: {s: found.mean_speedup(s, p) for s in subjects} for p in found.profiles}
    for subject in subjects:
        cells = []
        for row in means.values():
            others = [x for name, x in row.items() if x is not None and name != ORACLE]
            mine = row[subject]
            best = subject != ORACLE and mine is not None and mine == max(others)
            cells.append("-" if mine is None else _marked(mine, best))
        table.add_row(subject, *cells, style=_style(found, subject))
    return table


def _versus_table(drafter: str, versus: Mapping[str, Versus]) -> Table:
    columns = [("set", False), *((profile, True) for profile in versus)]
    table = _table(columns, f"{drafter}: speed-up over that of the best peer of each set")
    for name in dict.fromkeys(name for row in versus.values() for name in row.ratios):
        table.add_row(name, *(_number(row.ratios.get(name)) for row in versus.values()))
    table.add_row(MEAN, *(_number(row.mean_ratio) for row in versus.values()), style="bold")
    shares: Sequence[float | None] = [row.mean_share for row in versus.values()]
    if any(share is not None for share in shares):
        table.add_row("of the oracle's", *map(_number, shares))
    return table


def _growth_table(found: Replays) -> Table:
    contexts = next(iter(found.growth.values()))
    columns = [("µs/pass at a context of", False), *((f"{n >> 10}k", True) for n in contexts)]
    table = _table(columns, "Growth of the cost of a pass with the context")
    for name, row in found.growth.items():
        table.add_row(name, *(f"{row[n]:.1f}" for n in contexts), style=_style(found, name))
    return table


def _show_missing(console: Console, found: Replays) -> None:
    hints: dict[tuple[str, str], list[str]] = {}
    for name, reason in found.missing.items():
        hints.setdefault((PEERS[name].install, reason), []).append(name)
    for (install, reason), names in hints.items():
        console.print(f"Not there: {', '.join(names)}: {reason}.\n  {install}", soft_wrap=True)


def _best(found: Replays, name: str, profile: str) -> str:
    subjects = [subject for subject in found.sets[name] if subject != ORACLE]
    return max(subjects, key=lambda subject: found.speedup(name, subject, profile))


def _marked(value: float, best: bool) -> str:
    return f"{value:.3f}{'*' if best else ' '}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _style(found: Replays, name: str) -> str | None:
    if name in found.drafters or name == MEAN:
        return "bold"
    return "dim" if name == ORACLE else None
