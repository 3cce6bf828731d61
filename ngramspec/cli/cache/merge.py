"""`ngramspec cache merge`: add up the counts of several files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ngramspec.cli.files import JsonOptions, OutputOptions, check_output, say_written
from ngramspec.cli.options import LEAST_FILE, SizeType, argument, command, flag
from ngramspec.cli.progress import progress

EPILOG = """\b
Examples:
  ngramspec cache merge monday.ngc tuesday.ngc -o week.ngc
  ngramspec cache merge code.ngc lookup.bin -o code.ngc --min-count 2 --max-size 50M
  ngramspec cache merge a.ngp b.ngp -o both.ngp
"""


@dataclass
class MergeOptions(OutputOptions, JsonOptions):
    """Options of `cache merge`."""

    # fmt: off
    files: tuple[Path, ...] = argument(metavar="FILE...", required=True)
    min_count: int = flag("--min-count", "Drop followers seen fewer than N times in all files "
        "together.", default=1, low=1)
    max_size: int | None = flag("--max-size", "Keep the most useful n-grams within this file size.",
        type=SizeType(LEAST_FILE), metavar="SIZE")
    any_tokenizer: bool = flag(
        "--any-tokenizer", "Also merge files of different tokenizers.", default=False)


@command("merge", EPILOG)
def merge(options: MergeOptions) -> None:
    """Add up the counts of several files.

    The order of the files does not matter, and the output can be one of them. Hash pools must have
    the same shape; each cell keeps the entry that was confirmed more often.
    """
    from ngramspec.files.merge import merge_statistics
    from ngramspec.files.statistics import POOL_KIND, open_statistics

    if len(options.files) < 2:
        raise click.UsageError("give two files or more")
    check_output(options.output)
    with progress("reading"):
        statistics = [open_statistics(path, verify=True) for path in options.files]
    if statistics[0].kind == POOL_KIND and (options.min_count > 1 or options.max_size is not None):
        raise click.UsageError("--min-count and --max-size are not for hash pools")
    with progress("merging", sum(one.num_entries for one in statistics)) as steps:
        header = merge_statistics(
            statistics,
            options.output,
            min_count=options.min_count,
            max_bytes=options.max_size,
            any_tokenizer=options.any_tokenizer,
            on_read=steps,
        )
    say_written(options.output, header, options.as_json)
