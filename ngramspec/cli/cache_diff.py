"""`ngramspec cache diff`: in what two statistics files differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import EXIT_FAILED, TROUBLE_IS_2, SectionCommand
from ngramspec.cli.vocabulary import (
    given_path,
    json_option,
    quoted,
    text_of,
    tokenizer_of,
    tokenizer_options,
)
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.cli.cache_open import Statistics
    from ngramspec.tokenizers import Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache diff old.ngc new.ngc
  ngramspec cache diff code.ngc code.bin --top 0 && echo equal
"""
FIELDS = ("kind", "version", "producer", "fingerprint", "vocab_size")


@click.command("diff", cls=SectionCommand, epilog=EPILOG)
@click.argument("first", type=click.Path(path_type=Path), metavar="A")
@click.argument("second", type=click.Path(path_type=Path), metavar="B")
@click.option(
    "--top",
    type=click.IntRange(0, 10000),
    metavar="N",
    default=10,
    show_default=True,
    help="Largest differences of each size.",
)
@tokenizer_options("shows n-grams as text")
@json_option()
def diff(first: Path, second: Path, top: int, as_json: bool, **options: Any) -> None:
    """Compare the statistics of two files.

    That is n-grams, followers and counts, or the cells of pools. The exit code is 0 if they are
    equal, 1 if not, 2 if they cannot be compared. Provenance, version and vocab_size are told but
    do not count; tokenizers that are both known do.
    """
    from ngramspec.cli.cache_open import POOL_KIND, open_statistics

    click.get_current_context().meta[TROUBLE_IS_2] = True
    given = given_path(options)
    found = open_statistics(first), open_statistics(second)
    for one in found:
        one.need_statistics("compare")
    if (found[0].kind == POOL_KIND) != (found[1].kind == POOL_KIND):
        raise InputError(f"{first} is a {found[0].kind}, {second} is a {found[1].kind}")
    tokenizer = tokenizer_of(found[0].fingerprint or found[1].fingerprint, given)
    facts: dict[str, Any] = {"paths": [str(first), str(second)], "header": _header(*found)}
    known = {one.fingerprint for one in found if one.fingerprint is not None}
    equal = len(known) < 2
    if found[0].kind == POOL_KIND:
        facts["cells"] = _compare_pools(*found)
        equal &= not any(facts["cells"][key] for key in ("shape", "only_a", "only_b", "differing"))
    else:
        facts["sizes"] = [_compare_size(*found, size, top, tokenizer) for size in range(1, 5)]
        facts["sizes"] = [size for size in facts["sizes"] if size.pop("exists")]
        equal &= not any(
            size[key] for size in facts["sizes"] for key in ("only_a", "only_b", "differing")
        )
    facts["equal"] = bool(equal)
    if as_json:
        import json

        click.echo(json.dumps(facts))
    else:
        _show(facts, tokenizer)
    if not equal:
        raise click.exceptions.Exit(EXIT_FAILED)


def _header(first: Statistics, second: Statistics) -> dict[str, list[Any]]:
    """Return what the files say about themselves, where that differs."""
    sides = [_stated(first), _stated(second)]
    keys = sides[0] if first.container and second.container else ("kind", "fingerprint")
    return {key: [side[key] for side in sides] for key in keys if sides[0][key] != sides[1][key]}


def _stated(found: Statistics) -> dict[str, Any]:
    header = found.container.header if found.container is not None else None
    stated = {name: getattr(header, name, None) for name in FIELDS} | {"kind": found.kind}
    stated["fingerprint"] = found.fingerprint.hex() if found.fingerprint else None
    return stated | {"about": found.about or None}


def _compare_size(
    first: Statistics, second: Statistics, size: int, top: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    from ngramspec._native.files.unpack import tokens_of
    from ngramspec.cli.cache_compare import compare
    from ngramspec.formats.entries import ArraySource, no_entries

    empty = ArraySource(no_entries())
    sources = [one.sources().get(size) for one in (first, second)]
    found = compare(sources[0] or empty, sources[1] or empty, top)
    largest = []
    ngrams = tokens_of(found.largest, size)[:, :size].tolist()
    for ngram, by, counts in zip(ngrams, found.by.tolist(), found.counts.tolist(), strict=True):
        one = {"token_ids": ngram, "difference": by, "counts": counts}
        largest.append(one | ({"text": text_of(tokenizer, ngram)} if tokenizer else {}))
    return {
        "exists": sources != [None, None],
        "size": size,
        "equal": found.equal,
        "only_a": found.only_first,
        "only_b": found.only_second,
        "differing": found.differing,
        "largest": largest,
    }


def _compare_pools(first: Statistics, second: Statistics) -> dict[str, Any]:
    """Count the cells that differ; cells of pools of different shapes cannot be compared."""
    from dataclasses import asdict

    import numpy as np

    shapes = [asdict(one.shape) for one in (first, second)]
    other = {key: [shapes[0][key], shapes[1][key]] for key in shapes[0]
             if shapes[0][key] != shapes[1][key]}  # fmt: skip
    facts: dict[str, Any] = {"shape": other, "equal": 0, "only_a": 0, "only_b": 0, "differing": 0}
    if other:
        return facts
    a, b = first.cells(), second.cells()
    for at in range(0, len(a), 1 << 20):
        x, y = a[at : at + (1 << 20)], b[at : at + (1 << 20)]
        facts["equal"] += int(np.count_nonzero((x == y) & (x != 0)))
        facts["only_a"] += int(np.count_nonzero((x != 0) & (y == 0)))
        facts["only_b"] += int(np.count_nonzero((x == 0) & (y != 0)))
        facts["differing"] += int(np.count_nonzero((x != y) & (x != 0) & (y != 0)))
    return facts


def _show(facts: dict[str, Any], tokenizer: Tokenizer | None) -> None:
    from ngramspec.cli.cache_report import plain_console, plain_table

    console = plain_console()
    a, b = facts["paths"]
    verdict = f"{a} (A) and {b} (B) {'are equal' if facts['equal'] else 'differ'}"
    console.print(verdict, style="green" if facts["equal"] else "bold yellow", soft_wrap=True)
    for key, (one, other) in (facts["header"] | facts.get("cells", {}).get("shape", {})).items():
        told = "not the same" if key == "about" else f"{_or_unknown(one)}, {_or_unknown(other)}"
        console.print(f"  {key}: {told}", soft_wrap=True)
    rows = [(f"{size['size']}-grams", size) for size in facts.get("sizes", ())]
    rows += [("cells", facts["cells"])] if "cells" in facts else []
    headings = ("equal", "only in A", "only in B", "other counts")
    table = plain_table([("", False), *((heading, True) for heading in headings)])
    for label, row in rows:
        numbers = (row[key] for key in ("equal", "only_a", "only_b", "differing"))
        table.add_row(label, *(f"{number:,}" for number in numbers))
    if rows:
        console.print(table)
    for size in facts.get("sizes", ()):
        if size["largest"]:
            console.print(_largest_table(size, tokenizer))


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def _largest_table(size: dict[str, Any], tokenizer: Tokenizer | None) -> Any:
    from rich.text import Text

    from ngramspec.cli.cache_report import plain_table

    columns = [("difference", True), ("n-gram", False), ("count in A", True), ("in B", True)]
    table = plain_table(columns, f"Largest differences of {size['size']}-grams")
    for one in size["largest"]:
        counts = (f"{count:,}" for count in one["counts"])
        ngram = Text(quoted(tokenizer, one["token_ids"]))
        table.add_row(f"{one['difference']:,}", ngram, *counts)
    return table
