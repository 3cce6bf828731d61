"""`ngramspec cache merge`, `prune` and `convert`: statistics files made of others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ngramspec.cli.files import (
    LOOKUP_SUFFIX,
    JsonOptions,
    OutputOptions,
    TokenizerOptions,
    check_output,
    is_statistics,
    say_written,
    tokenizer_flag,
)
from ngramspec.cli.options import LEAST_FILE, SizeType, argument, command, flag
from ngramspec.cli.progress import progress

MERGE_EPILOG = """\b
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


@command("merge", MERGE_EPILOG)
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


PRUNE_EPILOG = """\b
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


@command("prune", PRUNE_EPILOG)
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


CONVERT_EPILOG = """\b
Examples:
  ngramspec cache convert code.ngc code.bin
  ngramspec cache convert lookup.bin lookup.ngc --model model.gguf
"""
NGRAMSPEC, LLAMA_CPP = "ngramspec", "llama.cpp"


@dataclass
class ConvertOptions(TokenizerOptions, JsonOptions):
    """Options of `cache convert`."""

    # fmt: off
    source: Path = argument(metavar="IN")
    output: Path = argument(metavar="OUT")
    to: str | None = flag("--to", "Format of OUT; default: llama.cpp's if it ends in .bin.",
        choices=(LLAMA_CPP, NGRAMSPEC))
    model: Path | None = tokenizer_flag("its tokenizer is recorded in OUT")


@command("convert", CONVERT_EPILOG)
def convert(options: ConvertOptions) -> None:
    """Convert to a lookup cache of llama.cpp, or from one.

    A lookup cache does not record its tokenizer; name it, so that it can be checked against that of
    a model. llama.cpp reads n-grams of 1 to 4 tokens, from a static cache only those of 2.
    """
    from ngramspec.files.cache_file import Origin
    from ngramspec.files.convert import from_lookup_cache, to_lookup_cache
    from ngramspec.files.llama_lookup import may_hold_records
    from ngramspec.files.statistics import open_statistics
    from ngramspec.text.tokenizers import fingerprint_of

    tokenizer_path, output = options.resolve(), options.output
    target = options.to or (LLAMA_CPP if output.suffix == LOOKUP_SUFFIX else NGRAMSPEC)
    check_output(output, {"statistics file": is_statistics, "lookup cache": may_hold_records})
    if target == LLAMA_CPP and tokenizer_path is not None:
        raise click.UsageError(
            "a lookup cache of llama.cpp cannot record a tokenizer: drop --model and --tokenizer"
        )
    header = None
    with progress("converting"):
        statistics = open_statistics(options.source, verify=True)
        if target == NGRAMSPEC:
            origin = None
            if tokenizer_path is not None:
                fingerprint = fingerprint_of(tokenizer_path)
                origin = Origin(fingerprint.digest, fingerprint.vocab_size)
            header = from_lookup_cache(statistics, output, origin)
        else:
            to_lookup_cache(statistics, output)
    say_written(output, header, options.as_json)
