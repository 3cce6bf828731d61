"""`ngramspec cache merge`: add up the counts of several files."""

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
  ngramspec cache merge monday.ngc tuesday.ngc -o week.ngc
  ngramspec cache merge code.ngc lookup.bin -o code.ngc --min-count 2 --max-size 50M
  ngramspec cache merge a.ngp b.ngp -o both.ngp
"""


@click.command("merge", cls=SectionCommand, epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@options(
    output_option(),
    option("Options", "--min-count", type=AT_LEAST_1, default=1,
           help="Drop followers seen fewer than N times in all files together."),
    option("Options", "--max-size", type=SizeType(LEAST_FILE),
           help="Keep the most useful n-grams within this file size."),
    option("Options", "--any-tokenizer", is_flag=True,
           help="Also merge files of different tokenizers."),
    json_option(),
)  # fmt: skip
def merge(
    files: tuple[Path, ...],
    output: Path,
    min_count: int,
    max_size: int | None,
    any_tokenizer: bool,
    as_json: bool,
) -> None:
    """Add up the counts of several files.

    The order of the files does not matter, and the output can be one of them. Hash pools must have
    the same shape; each cell keeps the entry that was confirmed more often.
    """
    from ngramspec.files.merge import merge_statistics
    from ngramspec.files.statistics import POOL_KIND, open_statistics

    if len(files) < 2:
        raise click.UsageError("give two files or more")
    check_output(output)
    with progress("reading"):
        statistics = [open_statistics(path, verify=True) for path in files]
    if statistics[0].kind == POOL_KIND and (min_count > 1 or max_size is not None):
        raise click.UsageError("--min-count and --max-size are not for hash pools")
    with progress("merging", sum(one.num_entries for one in statistics)) as steps:
        header = merge_statistics(
            statistics,
            output,
            min_count=min_count,
            max_bytes=max_size,
            any_tokenizer=any_tokenizer,
            on_read=steps,
        )
    say_written(output, header, as_json)
