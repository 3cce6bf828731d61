"""`ngramspec cache prune`: make a smaller file that is nearly as useful."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ngramspec.cli.files import JsonOptions, OutputOptions, check_output, say_written
from ngramspec.cli.options import LEAST_FILE, SizeType, argument, command, flag
from ngramspec.cli.progress import progress

EPILOG = """\b
Examples:
  ngramspec cache prune code.ngc -o small.ngc --max-size 10M
  ngramspec cache prune code.ngc -o code.ngc --min-count 2 --ngram-max 3
"""


@dataclass
class PruneOptions(OutputOptions, JsonOptions):
    """Options of `cache prune`."""

    # fmt: off
    file: Path = argument()
    max_size: int | None = flag("--max-size", "Keep the most useful n-grams within this file size.",
        type=SizeType(LEAST_FILE), metavar="SIZE")
    min_count: int = flag(
        "--min-count", "Drop followers seen fewer than N times.", default=1, low=1)
    ngram_min: int | None = flag("--ngram-min", "Shortest n-gram to keep.", low=1, high=4)
    ngram_max: int | None = flag("--ngram-max", "Longest n-gram to keep.", low=1, high=4)


@command("prune", EPILOG)
def prune(options: PruneOptions) -> None:
    """Keep the part of a statistics file that helps most.

    --max-size keeps the n-grams that promise the most accepted tokens per byte. The output can be
    the file itself.
    """
    from ngramspec.files.prune import prune_statistics
    from ngramspec.files.statistics import open_statistics

    sizes = (options.ngram_min or 1, options.ngram_max or 4)
    if (options.max_size, options.min_count, *sizes) == (None, 1, 1, 4):
        raise click.UsageError("give --max-size, --min-count, --ngram-min or --ngram-max")
    check_output(options.output)
    with progress("reading"):
        statistics = open_statistics(options.file, verify=True)
    before = statistics.file_bytes
    with progress("pruning", statistics.num_entries) as steps:
        header = prune_statistics(
            statistics,
            options.output,
            max_bytes=options.max_size,
            min_count=options.min_count,
            ngram_min=options.ngram_min,
            ngram_max=options.ngram_max,
            on_read=steps,
        )
    say_written(options.output, header, options.as_json, before=before)
