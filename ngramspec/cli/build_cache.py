"""`ngramspec build-cache`: files from a corpus, for ngram-cache, ngram-mod and suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.build_order import Order, take_order
from ngramspec.cli.group import SectionCommand
from ngramspec.cli.interrupt import EXIT_INTERRUPTED, Interrupt, interruptible
from ngramspec.cli.sizes import LEAST_FILE, ShareType, SizeType
from ngramspec.cli.vocabulary import (
    SECTION,
    json_option,
    section_option,
    tokenizer_options,
)

if TYPE_CHECKING:
    from ngramspec.build import BuildResult, Progress

EPILOG = """\b
Examples:
  ngramspec build-cache src docs -o code.ngc --model model.gguf --held-out 5%
  ngramspec build-cache chats.jsonl.gz -o chats.ngc --tokenizer tokenizer.json \\
      --role assistant --min-count 2 --max-size 50M
  unzip -p posts.zip | ngramspec build-cache - --format jsonl -o posts.ngc
  ngramspec build-cache src -o code.pool --kind hash-pool --n-match 16
  ngramspec build-cache src -o code.ngx --kind suffix
"""
CORPUS, FILE, POOL, RUN, OUTPUT = "Corpus", "File", "Hash pool", "Run", "Output"
KINDS = ("ngram-cache", "hash-pool", "suffix")
NOTE = "stopping at the next document; Ctrl-C again ends at once"
GO_ON = "run the same command with --resume to go on"


@click.command("build-cache", cls=SectionCommand, epilog=EPILOG)
@click.argument("corpus", nargs=-1, required=True)
@section_option(
    FILE,
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write; an old one is replaced when the new one is whole.",
)
@section_option(
    FILE,
    "--kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    help="Counts for the drafter ngram-cache, a pool for ngram-mod, or an index for suffix.",
)
@section_option(
    FILE, "--ngram-min", type=click.IntRange(1, 4), help="Shortest n-gram.  [default: 2]"
)
@section_option(
    FILE, "--ngram-max", type=click.IntRange(1, 4), help="Longest n-gram.  [default: 4]"
)
@section_option(
    FILE,
    "--min-count",
    type=click.IntRange(1),
    help="Leave out followers that came less often.  [default: 1]",
)
@section_option(
    FILE,
    "--max-size",
    type=SizeType(LEAST_FILE),
    help="Keep the most useful within this size: 50M.",
)
@section_option(FILE, "--no-provenance", is_flag=True, help="State no names, dates and options.")
@tokenizer_options("without it the embedded model's tokenizer", SECTION)
@section_option(CORPUS, "--include", multiple=True, metavar="GLOB", help="Only such files; again.")
@section_option(
    CORPUS, "--exclude", multiple=True, metavar="GLOB", help="No such files or folders."
)
@section_option(
    CORPUS, "--follow-links", is_flag=True, help="Also read what links outside of a folder name."
)
@section_option(
    CORPUS,
    "--format",
    type=click.Choice(["text", "jsonl", "parquet"]),
    help="Of all files; default: by name, else text.",
)
@section_option(CORPUS, "--field", metavar="NAME", help="Field of a record: content, or data.text.")
@section_option(
    CORPUS, "--role", multiple=True, metavar="ROLE", help="Only such messages of chats; again."
)
@section_option(
    CORPUS,
    "--held-out",
    type=ShareType(),
    help="Share of the documents, such as 5%, to measure with instead of counting.",
)
@section_option(
    POOL, "--n-match", type=click.IntRange(1, 65535), help="Tokens hashed.  [default: 24]"
)
@section_option(
    POOL, "--capacity", type=SizeType(), metavar="N", help="Cells, 4 bytes each.  [default: 4M]"
)
@section_option(
    POOL, "--check-bits", type=click.IntRange(0, 8), help="Against false hits.  [default: 8]"
)
@section_option(
    POOL,
    "--max-occupancy",
    type=click.FloatRange(0, 0.95, min_open=True),
    help="Share of the cells to fill at most.  [default: 0.5]",
)
@section_option(
    RUN, "-j", "--jobs", type=click.IntRange(1, 1024), help="Threads.  [default: one per CPU]"
)
@section_option(
    RUN, "--memory", type=SizeType(), default="2G", help="Stay below (with Ray: each task)."
)
@section_option(RUN, "--resume", is_flag=True, help="Go on with a stopped build.")
@section_option(RUN, "--restart", is_flag=True, help="Forget a stopped build.")
@section_option(
    RUN,
    "--work",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where to keep intermediate files; default: beside the output.",
)
@section_option(
    RUN, "--executor", type=click.Choice(["local", "ray"]), default="local", help="Who builds."
)
@section_option(RUN, "--ray-address", metavar="ADDRESS", help="Of the Ray cluster.")
@section_option(OUTPUT, "--no-progress", is_flag=True, help="No progress bar.")
@json_option(OUTPUT)
def build_cache(**options: Any) -> None:
    """Count the n-grams of a corpus and write them as a statistics file.

    CORPUS: files, folders, or - for stdin. Text and code, jsonl and parquet, also compressed (gz,
    zst, xz, bz2). Equal documents count once. The tokenizer must be that of the model that the file
    is for. Equal texts and options give equal bytes, whatever --jobs and --memory are.
    """
    as_json, shown = options.pop("as_json"), not options.pop("no_progress")
    order = take_order(options)
    with interruptible(NOTE) as interrupt:
        result = _build(order, interrupt, shown=shown)
    if as_json:
        import json

        click.echo(json.dumps(result.as_dict()))
        return
    from rich.console import Console

    from ngramspec.cli.build_report import show_result

    console = Console(highlight=False, markup=False, emoji=False)
    show_result(console, result, order)


def _build(order: Order, interrupt: Interrupt, *, shown: bool) -> BuildResult:
    """Build; Ctrl-C ends the command with its exit code and a line how to go on."""
    from ngramspec.build.local import BuildStopped
    from ngramspec.cli.build_progress import build_progress
    from ngramspec.models import embedded_model

    path = order.tokenizer or embedded_model()
    if order.tokenizer is None:
        text = f"no --model or --tokenizer given: using the embedded model {path.name}"
        click.echo(text, err=True)
    run: Callable[[Path, Order, Progress], BuildResult] = _with_ray if order.ray else _locally
    try:
        with build_progress(interrupt, wanted=shown) as progress:
            return run(path, order, progress)
    except BuildStopped as stopped:
        line = str(stopped) if order.ray else f"{stopped}; {GO_ON}"
    except KeyboardInterrupt:
        kept = Path(order.means.work_folder(order.output), "state.json").exists()
        line = f"ended; {GO_ON} from the last checkpoint" if kept else "ended; nothing was kept"
    click.echo(line, err=True)
    raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _locally(path: Path, order: Order, progress: Progress) -> BuildResult:
    from ngramspec.build import build
    from ngramspec.build.memory import return_large_blocks
    from ngramspec.tokenizers import load_tokenizer

    return_large_blocks()
    return build(
        order.corpus,
        order.output,
        load_tokenizer(path),
        order.options,
        order.means,
        progress,
        resume=order.resume,
        restart=order.restart,
    )


def _with_ray(path: Path, order: Order, progress: Progress) -> BuildResult:
    from ngramspec.build.ray_executor import build_on_ray

    return build_on_ray(
        order.corpus,
        order.output,
        path,
        order.options,
        progress,
        address=order.ray_address,
        memory=order.means.memory,
    )
