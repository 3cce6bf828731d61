"""`ngramspec cache prune`: a smaller file that is nearly as useful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.outputs import check_output, output_option, say_written
from ngramspec.cli.sizes import LEAST_FILE, SizeType
from ngramspec.cli.vocabulary import json_option
from ngramspec.errors import InputError

EPILOG = """\b
Examples:
  ngramspec cache prune code.ngc -o small.ngc --max-size 10M
  ngramspec cache prune code.ngc -o code.ngc --min-count 2 --ngram-max 3
"""


@click.command("prune", cls=SectionCommand, epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@output_option
@click.option(
    "--max-size", type=SizeType(LEAST_FILE), help="Keep the most useful within this size."
)
@click.option(
    "--min-count",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Leave out followers that came less often.",
)
@click.option(
    "--ngram-min", type=click.IntRange(1, 4), metavar="N", help="Shortest n-gram to keep."
)
@click.option("--ngram-max", type=click.IntRange(1, 4), metavar="N", help="Longest n-gram to keep.")
@json_option()
def prune(file: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Keep the part of a statistics file that helps most.

    --max-size chooses n-grams by the accepted tokens per byte that they promise. The output may be
    the file itself.
    """
    from ngramspec._native.files.merge import EntryMerger
    from ngramspec.build.options import BuildOptions
    from ngramspec.build.output import write_output
    from ngramspec.cli.cache_open import open_statistics
    from ngramspec.formats.cache_file import Origin

    max_bytes, min_count = options["max_size"], options["min_count"]
    low, high = options["ngram_min"] or 1, options["ngram_max"] or 4
    if max_bytes is None and min_count == 1 and (low, high) == (1, 4):
        raise click.UsageError("give --max-size, --min-count, --ngram-min or --ngram-max")
    check_output(output)
    found = open_statistics(file, verify=True)
    found.need_ngrams("prune")
    sources = {
        size: EntryMerger([source], min_count)
        for size, source in found.sources().items()
        if low <= size <= high
    }
    if not sources:
        held = " ".join(map(str, found.sizes))
        raise InputError(f"{file} has no n-grams of {low} to {high} tokens, but of {held}")
    about = _pruned_about(found.about, options)
    origin = Origin(found.fingerprint, found.vocab_size, about)
    header = write_output(output, sources, origin, BuildOptions(max_bytes=max_bytes))
    say_written(output, header, as_json, before=found.file_bytes)


def _pruned_about(about: dict[str, Any], options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the provenance with one more step; none if there was none."""
    if not about:
        return None
    names = {"max_size": "max_bytes", "min_count": "min_count"}
    step = {names.get(key, key): value for key, value in options.items()}
    return about | {"pruned": [*about.get("pruned", ()), step]}
