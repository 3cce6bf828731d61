"""`ngramspec cache diff`: how two statistics files differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.cache.vocabulary import quoted, text_of, tokenizer_of
from ngramspec.cli.command import EXIT_FAILED, TROUBLE_IS_2, SectionCommand
from ngramspec.cli.options import (
    FILE,
    given_tokenizer,
    json_option,
    option,
    options,
    tokenizer_options,
)
from ngramspec.cli.output import make_table, plain_console, print_json
from ngramspec.cli.progress import progress

if TYPE_CHECKING:
    from ngramspec.text.tokenizers import Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache diff old.ngc new.ngc
  ngramspec cache diff code.ngc code.bin --top 0 && echo equal
"""
COUNTS = ("equal", "only_a", "only_b", "differing")
Facts = dict[str, Any]


@click.command("diff", cls=SectionCommand, epilog=EPILOG)
@click.argument("first", type=FILE, metavar="A")
@click.argument("second", type=FILE, metavar="B")
@options(
    option("Options", "--top", type=click.IntRange(0, 10000), default=10,
           help="Number of largest differences to show per n-gram size."),
    tokenizer_options("its tokenizer shows n-grams as text"),
    json_option(),
)  # fmt: skip
def diff(first: Path, second: Path, top: int, as_json: bool, **values: Any) -> None:
    """Compare the statistics of two files.

    Compares n-grams, followers and counts, or the cells of pools. The exit code is 0 if they are
    equal, 1 if not, 2 if they cannot be compared. Provenance, version and vocab_size are shown but
    do not count as a difference; tokenizers do if both are known.
    """
    from ngramspec.files.compare import compare_statistics
    from ngramspec.files.statistics import open_statistics

    click.get_current_context().meta[TROUBLE_IS_2] = True
    tokenizer_path = given_tokenizer(values)
    with progress("comparing"):
        a, b = open_statistics(first), open_statistics(second)
        comparison = compare_statistics(a, b, top)
    tokenizer = tokenizer_of(a.fingerprint or b.fingerprint, tokenizer_path)
    facts = comparison.as_json()
    if tokenizer is not None:
        for ngram in (one for size in facts.get("sizes", ()) for one in size["largest"]):
            ngram["text"] = text_of(tokenizer, ngram["token_ids"])
    if as_json:
        print_json(facts)
    else:
        _show(facts, tokenizer)
    if not comparison.equal:
        raise click.exceptions.Exit(EXIT_FAILED)


def _show(facts: Facts, tokenizer: Tokenizer | None) -> None:
    from rich.text import Text

    console = plain_console()
    a, b = facts["paths"]
    verdict = f"{a} (A) and {b} (B) {'are equal' if facts['equal'] else 'differ'}"
    console.print(verdict, style="green" if facts["equal"] else "bold yellow", soft_wrap=True)
    for key, (one, other) in (facts["header"] | facts.get("cells", {}).get("shape", {})).items():
        text = "not the same" if key == "about" else f"{_or_unknown(one)}, {_or_unknown(other)}"
        console.print(f"  {key}: {text}", soft_wrap=True)
    rows = [(f"{size['size']}-grams", size) for size in facts.get("sizes", ())]
    rows += [("cells", facts["cells"])] if "cells" in facts else []
    shown = ([label, *(f"{row[key]:,}" for key in COUNTS)] for label, row in rows)
    headings = ("", "equal", "only in A", "only in B", "other counts")
    if rows:
        console.print(make_table(headings, shown, text=[""], gap=2))
    columns = ("difference", "n-gram", "count in A", "in B")
    for size in facts.get("sizes", ()):
        title = f"Largest differences of {size['size']}-grams"
        table = make_table(columns, title=title, text=["n-gram"], gap=2)
        for one in size["largest"]:
            counts = (f"{count:,}" for count in one["counts"])
            ngram = Text(quoted(tokenizer, one["token_ids"]))
            table.add_row(f"{one['difference']:,}", ngram, *counts)
        if size["largest"]:
            console.print(table)


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)
