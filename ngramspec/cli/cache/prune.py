"""`ngramspec cache prune`: make a smaller file that is nearly as useful."""

from __future__ import annotations

from pathlib import Path

import click

from ngramspec.cli.cache.written import say_written
from ngramspec.cli.command import SectionCommand
from ngramspec.cli.options import (
    AT_LEAST_1,
    FILE,
    LEAST_FILE,
    SizeType,
    check_output,
    json_option,
    option,
    options,
    output_option,
)
from ngramspec.cli.progress import progress

EPILOG = """\b
Examples:
  ngramspec cache prune code.ngc -o small.ngc --max-size 10M
  ngramspec cache prune code.ngc -o code.ngc --min-count 2 --ngram-max 3
"""


@click.command("prune", cls=SectionCommand, epilog=EPILOG)
@click.argument("file", type=FILE)
@options(
    output_option(),
    option("Options", "--max-size", type=SizeType(LEAST_FILE),
           help="Keep the most useful n-grams within this file size."),
    option("Options", "--min-count", type=AT_LEAST_1, default=1,
           help="Drop followers seen fewer than N times."),
    option("Options", "--ngram-min", type=click.IntRange(1, 4), help="Shortest n-gram to keep."),
    option("Options", "--ngram-max", type=click.IntRange(1, 4), help="Longest n-gram to keep."),
    json_option(),
)  # fmt: skip
def prune(
    file: Path,
    output: Path,
    max_size: int | None,
    min_count: int,
    ngram_min: int | None,
    ngram_max: int | None,
    as_json: bool,
) -> None:
    """Keep the part of a statistics file that helps most.

    --max-size keeps the n-grams that promise the most accepted tokens per byte. The output can be
    the file itself.
    """
    from ngramspec.files.prune import prune_statistics
    from ngramspec.files.statistics import open_statistics

    if (max_size, min_count, ngram_min or 1, ngram_max or 4) == (None, 1, 1, 4):
        raise click.UsageError("give --max-size, --min-count, --ngram-min or --ngram-max")
    check_output(output)
    with progress("reading"):
        statistics = open_statistics(file, verify=True)
    before = statistics.file_bytes
    with progress("pruning", statistics.num_entries) as steps:
        header = prune_statistics(
            statistics,
            output,
            max_bytes=max_size,
            min_count=min_count,
            ngram_min=ngram_min,
            ngram_max=ngram_max,
            on_read=steps,
        )
    say_written(output, header, as_json, before=before)
