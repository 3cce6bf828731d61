"""`ngramspec build-cache`: statistics files from a corpus, for ngram-cache, ngram-mod, suffix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ngramspec.cli.command import EXIT_INTERRUPTED, Failure, Interrupt, error_line, interruptible
from ngramspec.cli.files import JsonOptions, OutputOptions, check_output
from ngramspec.cli.options import (
    LEAST_FILE,
    NamedPath,
    ShareType,
    SizeType,
    argument,
    command,
    flag,
)
from ngramspec.cli.output import (
    duration_text,
    make_table,
    number_of,
    plain_console,
    print_json,
    printable,
    size_text,
)
from ngramspec.cli.progress import FINISHING, build_progress
from ngramspec.cli.recorded import (
    FORMATS,
    RecordedOptions,
    load_recorded,
    provenance_of,
    recorded_files,
    refuse_mixed_keys,
    say_recorded,
    tokenizer_of,
)
from ngramspec.errors import CapacityError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from ngramspec.lab.builder import BuildOptions, BuildResult, HeldOut, Progress, Resources
    from ngramspec.lab.corpus import Problems
    from ngramspec.lab.costs import Costs

EPILOG = """\b
Examples:
  ngramspec build-cache docs -o docs.ngx --kind suffix --held-out 10%
  ngramspec build-cache src docs -o code.ngc --model model.gguf --held-out 5%
  ngramspec build-cache chats.jsonl.gz -o chats.ngc --tokenizer tokenizer.json \\
      --role assistant --min-count 2 --max-size 50M
  unzip -p posts.zip | ngramspec build-cache - --format jsonl -o posts.ngc
  ngramspec build-cache src -o code.ngp --kind hash-pool --n-match 16
  ngramspec build-cache requests.jsonl -o answers.ngx --kind suffix --held-out 10%
"""
CACHE_KIND, POOL_KIND, INDEX_KIND = KINDS = ("ngram-cache", "hash-pool", "suffix")
POOL_DRAFTER = "ngram-mod"  # the other kinds are called as the drafter that reads them
NGRAM_SIZES = ("ngram_min", "ngram_max")
POOL_SHAPE = ("n_match", "capacity", "check_bits", "max_occupancy")
# Kinds, and the options that only they have.
OF_KINDS = {
    (CACHE_KIND,): NGRAM_SIZES,
    (CACHE_KIND, POOL_KIND): ("min_count",),
    (CACHE_KIND, INDEX_KIND): ("max_size",),
    (POOL_KIND,): POOL_SHAPE,
}
# Options on how text is read and how its build goes on, which recorded requests do not need.
NOT_RECORDED = (
    *("include", "exclude", "field", "role", "no_ignore", "follow_links"),
    *("jobs", "resume", "restart", "work"),
)
LEAST_CELLS, MOST_CELLS = 1 << 10, 1 << 31
MOST_PROBLEMS = 5
MEGA = 1e6
SPEED = "speed-up: modelled, over no drafts, drafts as long as pays; costs:"
NOTE = "stopping at the next document; Ctrl-C again quits at once"
GO_ON = "run the same command with --resume to continue"
MAKE_ROOM = f"make room there, then {GO_ON}"
COUNTED = "what was counted is kept: give --resume and a larger --min-count"
NO_ROOM = "make room there, or choose another place with -o and --work; nothing was kept"


@dataclass
class FileOptions:
    """What is written."""

    section = "File"
    # fmt: off
    kind: str = flag("--kind", "Counts for the drafter ngram-cache, a pool for ngram-mod, or an "
        "index for suffix; ngram-mod: the same as hash-pool.", default=CACHE_KIND,
        choices=(*KINDS, POOL_DRAFTER),
        callback=lambda _, __, kind: POOL_KIND if kind == POOL_DRAFTER else kind)
    ngram_min: int | None = flag("--ngram-min", "Shortest n-gram.  [default: 2]", low=1, high=4)
    ngram_max: int | None = flag("--ngram-max", "Longest n-gram.  [default: 4]", low=1, high=4)
    min_count: int | None = flag(
        "--min-count", "Drop followers seen fewer than N times.  [default: 1]", low=1)
    max_size: int | None = flag("--max-size", "Keep the most useful part within this file size, "
        "such as 50M.", type=SizeType(LEAST_FILE), metavar="SIZE")
    no_provenance: bool = flag("--no-provenance", "Do not record file names, dates and options in "
        "the file.", default=False)


@dataclass
class CorpusOptions(RecordedOptions):
    """What is read."""

    section = "Corpus"
    # fmt: off
    include: tuple[str, ...] = flag("--include", "Read only files that match PATTERN, written as "
        "in a .gitignore (repeatable).", default=(), metavar="PATTERN")
    exclude: tuple[str, ...] = flag("--exclude", "Skip files and folders that match PATTERN "
        "(repeatable).", default=(), metavar="PATTERN")
    no_ignore: bool = flag(
        "--no-ignore", "Also read files that .gitignore excludes.", default=False)
    follow_links: bool = flag(
        "--follow-links", "Also follow links that lead out of the given folder.", default=False)
    format: str | None = flag("--format", "Format of all files; default: as each is recognised, "
        "by what it holds or by its name; otherwise text.",
        choices=("text", "jsonl", "parquet", *FORMATS))
    mix_keys: bool = flag("--mix-keys", "Let the file hold answers to several keys that learn for "
        "themselves.", default=False)
    field: str | None = flag("--field", "Field of a record that holds the text, such as content or "
        "data.text.", metavar="NAME")
    role: tuple[str, ...] = flag(
        "--role", "Read only chat messages of ROLE (repeatable).", default=(), metavar="ROLE")
    held_out: float | None = flag("--held-out", "Share of the documents to hold out and measure "
        "with, such as 5%.", type=ShareType(), metavar="SHARE")


@dataclass
class PoolOptions:
    """The shape of a hash pool."""

    section = "Hash pool"
    # fmt: off
    n_match: int | None = flag(
        "--n-match", "Tokens hashed per lookup.  [default: 24]", low=1, high=65535)
    capacity: int | None = flag(
        "--capacity", "Cells, 4 bytes each.  [default: 4M]", type=SizeType(), metavar="N")
    check_bits: int | None = flag(
        "--check-bits", "Bits per cell against false hits.  [default: 8]", low=0, high=8)
    max_occupancy: float | None = flag("--max-occupancy", "Largest share of cells to fill.  "
        "[default: 0.5]", low=0, high=0.95, min_open=True)


@dataclass
class RunOptions:
    """How the build runs."""

    section = "Run"
    # fmt: off
    jobs: int | None = flag("-j --jobs", "Threads.  [default: one per CPU]", low=1, high=1024)
    memory: int = flag("--memory", "Memory limit (with Ray: per task).", default=2 << 30,
        type=SizeType(), metavar="SIZE")
    resume: bool = flag("--resume", "Continue a stopped build.", default=False)
    restart: bool = flag("--restart", "Discard a stopped build and start over.", default=False)
    work: Path | None = flag("--work", "Folder for intermediate files (with Ray: seen by all "
        "hosts); default: next to the output.", metavar="FOLDER")
    executor: str = flag("--executor", "Where to build.", default="local", choices=("local", "ray"))
    ray_address: str | None = flag(
        "--ray-address", "Address of the Ray cluster.", metavar="ADDRESS")


@dataclass
class BuildCacheOptions(
    FileOptions, CorpusOptions, PoolOptions, RunOptions, OutputOptions, JsonOptions
):
    """Options of `build-cache`."""

    section = "Output"
    corpus: tuple[str, ...] = argument(required=True, type=NamedPath(readable=False))
    no_progress: bool = flag("--no-progress", "Do not show progress.", default=False)


@command("build-cache", EPILOG)
def build_cache(options: BuildCacheOptions) -> None:
    """Build a statistics file from texts or recorded answers.

    CORPUS: files, folders, or - for stdin. Text and code, jsonl and parquet, also compressed (gz,
    zst, xz, bz2); duplicates count once. Hidden files and files that a .gitignore excludes are
    skipped. PATTERN is a line of a .gitignore: '*.py' in any folder, '/docs' only at the top,
    'tests/' with all below; '!keep.py' undoes a match.

    Of recorded requests (`serve --record`) and JSON arrays of chats, the answers are counted. The
    tokenizer must be that of the model that will use the file. The same texts and options give the
    same bytes.
    """
    from ngramspec.lab.builder import Resources
    from ngramspec.lab.costs import saved_costs

    check_output(options.output)
    _refuse_misplaced(options)
    options.resolve()
    files = recorded_files(options.corpus, options.format)
    costs = saved_costs(options.tokenizer if options.held_out else None)
    if files:
        _from_recorded(options, costs, files)
        return
    if options.keys:
        raise click.UsageError("--key is for recorded requests")
    settings = _build_options(options, costs)
    jobs = options.jobs or _num_cpus()
    resources = Resources(jobs=jobs, memory=options.memory, work=options.work)
    with interruptible(NOTE) as interrupt:
        result = _build(options, settings, resources, interrupt)
    if options.as_json:
        print_json(result.as_dict())
    else:
        _show(plain_console(), result, settings, options, costs, jobs)


def _from_recorded(options: BuildCacheOptions, costs: Costs, files: Sequence[Path]) -> None:
    """Build from the answers of recorded requests."""
    from ngramspec.lab.builder.tokens import build_from_tokens
    from ngramspec.lab.recordings.traces import Cut

    _refuse(options, (*NOT_RECORDED, "ray_address"), True, "files of text")
    if options.executor == "ray":
        raise click.UsageError("recorded requests are for --executor local")
    loaded, problems = load_recorded(files, options, Cut(max_prompt=1, max_output=0))
    say_recorded(loaded, problems, brief=options.as_json)
    traces = [trace for one in loaded for trace in one.sets]
    refuse_mixed_keys(traces, options.mix_keys)
    settings = _build_options(replace(options, format=None), costs)
    answers = (one.output for trace in traces for one in trace.requests)
    result = build_from_tokens(
        answers,
        options.output,
        tokenizer_of(options.tokenizer, loaded),
        settings,
        provenance_of(options.tokenizer, loaded) if settings.provenance else None,
    )
    result.problems.merge(problems)
    if options.as_json:
        print_json(result.as_dict())
    else:
        _show(plain_console(), result, settings, options, costs, jobs=1)


def _refuse_misplaced(options: BuildCacheOptions) -> None:
    """Refuse options that are for another kind of file or for another executor."""
    is_ray = options.executor == "ray"
    for kinds, names in OF_KINDS.items():
        _refuse(options, names, options.kind not in kinds, f"--kind {' or '.join(kinds)}")
    _refuse(options, ("jobs",), is_ray, "--executor local")
    _refuse(options, ("ray_address",), not is_ray, "--executor ray")
    if options.resume and options.restart:
        raise click.UsageError("give either --resume or --restart")


def _refuse(options: BuildCacheOptions, names: tuple[str, ...], wrong: bool, needed: str) -> None:
    for name in names:
        value = getattr(options, name)
        is_given = value is not None and value is not False and value != ()  # 0 is given
        if wrong and is_given:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {needed}")


def _build_options(options: BuildCacheOptions, costs: Costs) -> BuildOptions:
    """Return the build's options; options not given keep their defaults."""
    from ngramspec.files.pool_file import PoolShape
    from ngramspec.lab.builder import BuildOptions

    shape = {name: value for name in POOL_SHAPE if (value := getattr(options, name)) is not None}
    cells = shape.get("capacity", LEAST_CELLS)
    if cells & (cells - 1) or not LEAST_CELLS <= cells <= MOST_CELLS:
        raise InputError(f"--capacity must be a power of two in 1K..2G, got {cells}")
    same = ("kind", "include", "exclude", "format", "field", "follow_links")
    return BuildOptions(
        **{name: getattr(options, name) for name in same},
        **{name: value for name in NGRAM_SIZES if (value := getattr(options, name))},
        pool=PoolShape(**shape),
        min_count=options.min_count or 1,
        max_bytes=options.max_size,
        held_out=options.held_out or 0.0,
        costs=costs.table,
        gitignore=not options.no_ignore,
        roles=options.role,
        provenance=not options.no_provenance,
    )


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _build(
    options: BuildCacheOptions, settings: BuildOptions, resources: Resources, interrupt: Interrupt
) -> BuildResult:
    """Build; Ctrl-C ends the command with its exit code and a line on how to continue."""
    from ngramspec.files.atomic import DISK_FULL
    from ngramspec.lab.builder.checkpoint import has_checkpoint
    from ngramspec.lab.builder.local import BuildStopped
    from ngramspec.models import embedded_model

    if options.tokenizer is None:
        name = embedded_model().name
        click.echo(f"no --model or --tokenizer given: using the embedded model {name}", err=True)
    is_ray = options.executor == "ray"
    late = finishing(options.kind, is_ray=is_ray)
    try:
        with build_progress(interrupt, visible=not options.no_progress, finishing=late) as progress:
            return (_with_ray if is_ray else _locally)(options, settings, resources, progress)
    except BuildStopped as stopped:
        line = f"{stopped}; {GO_ON}"
    except KeyboardInterrupt:
        saved = has_checkpoint(resources.work_folder(options.output))
        line = f"ended; {GO_ON} from the last checkpoint" if saved else "ended; nothing was kept"
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        saved = has_checkpoint(resources.work_folder(options.output))
        raise Failure(f"{error_line(error)}: {MAKE_ROOM if saved else NO_ROOM}") from error
    except CapacityError as error:
        if not has_checkpoint(resources.work_folder(options.output)):
            raise
        raise Failure(f"{error_line(error)}; {COUNTED}") from error
    click.echo(line, err=True)
    raise click.exceptions.Exit(EXIT_INTERRUPTED)


def finishing(kind: str, *, is_ray: bool) -> tuple[str, ...]:
    """Return the phases of a build that Ctrl-C does not stop."""
    # Tasks merge what is written, and waiting for them can be stopped; an index is written here.
    return ("measuring",) if is_ray and kind != INDEX_KIND else FINISHING


def _locally(
    options: BuildCacheOptions, settings: BuildOptions, resources: Resources, progress: Progress
) -> BuildResult:
    from ngramspec.lab.builder import build
    from ngramspec.lab.builder.local import return_large_blocks
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import load_tokenizer

    return_large_blocks()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one core for each of --jobs
    return build(
        options.corpus,
        options.output,
        load_tokenizer(options.tokenizer or embedded_model()),
        settings,
        resources,
        progress,
        resume=options.resume,
        restart=options.restart,
    )


def _with_ray(
    options: BuildCacheOptions, settings: BuildOptions, resources: Resources, progress: Progress
) -> BuildResult:
    from ngramspec.lab.builder.ray_executor import build_on_ray
    from ngramspec.models import embedded_model

    return build_on_ray(
        options.corpus,
        options.output,
        options.tokenizer or embedded_model(),
        settings,
        progress,
        address=options.ray_address,
        memory=resources.memory,
        work=resources.work,
        resume=options.resume,
        restart=options.restart,
    )


def _show(
    console: Console,
    result: BuildResult,
    settings: BuildOptions,
    options: BuildCacheOptions,
    costs: Costs,
    jobs: int,
) -> None:
    """Print the file, its corpus, the time, and how much it helps on held-out documents."""
    jobs = 0 if options.executor == "ray" else jobs
    lines = [
        ("corpus", _corpus(result)),
        ("tokens", f"{result.totals.tokens:,}"),
        ("file", _file(result, settings)),
        ("time", _time(result, jobs, whole=not options.resume)),
    ]
    console.print(f"{result.path}", style="bold", soft_wrap=True)
    for title, text in lines:
        console.print(f"  {title:8}{text}", soft_wrap=True)
    for line in _problems(result.problems):
        console.print(line, style="yellow", soft_wrap=True)
    if settings.held_out:
        _show_held_out(console, result, costs)


def _corpus(result: BuildResult) -> str:
    totals = result.totals
    parts = [number_of(totals.documents, "document")]
    if totals.text_bytes:
        parts[0] += f", {size_text(totals.text_bytes)} of text"
    if totals.held_out:
        parts.append(f"{totals.held_out:,} of them held out")
    parts.append(f"{number_of(totals.duplicates, 'duplicate')} dropped")
    return ", ".join(parts)


def _file(result: BuildResult, options: BuildOptions) -> str:
    header, size = result.header, size_text(result.file_bytes)
    if header.kind == POOL_KIND:
        cells = options.pool.capacity
        share = header.num_ngrams / cells
        return (
            f"{size}, {header.num_ngrams:,} of {cells:,} cells in use ({share:.1%}), "
            f"{header.ngram_min} tokens per lookup"
        )
    if header.kind == INDEX_KIND:
        each = result.file_bytes / header.num_pairs
        return f"{size}, {header.num_pairs:,} tokens of text, {each:.1f} bytes each"
    lengths = f"{header.ngram_min} to {header.ngram_max}"
    if header.ngram_min == header.ngram_max:
        lengths = str(header.ngram_min)
    return (
        f"{size}, {header.num_ngrams:,} n-grams of {lengths} tokens, "
        f"{header.num_pairs:,} pairs with a follower"
    )


def _time(result: BuildResult, jobs: int, *, whole: bool) -> str:
    """Return times and rate. whole: this run read all of the corpus, not only the rest."""
    seconds, total = result.seconds, max(result.seconds.total, 1e-9)
    rate = result.totals.text_bytes / total / MEGA
    text = duration_text(seconds.total)
    if jobs:
        text += f" with {number_of(jobs, 'thread')}"
    if rate:
        text += f", {rate:.1f} MB/s" if whole else ", not counting earlier runs"
    if seconds.tokenising_share:
        text += f"; {seconds.tokenising_share:.0%} of the work was tokenizing"
    return text


def _problems(problems: Problems) -> Iterator[str]:
    """Yield how much was left out and the first reasons."""
    kinds = (
        (problems.num_skipped, "file", " skipped"),
        (problems.num_recoded, "file", " not in UTF-8"),
        (problems.num_files, "file", " not read to the end"),
        (problems.num_records, "record", " left out"),
    )
    parts = [f"{number_of(count, noun)}{what}" for count, noun, what in kinds if count]
    if not parts:
        return
    yield f"  {', '.join(parts)}{':' if problems.first else ''}"
    for problem in problems.first[:MOST_PROBLEMS]:
        yield f"    {printable(str(problem))}"
    more = problems.total - min(len(problems.first), MOST_PROBLEMS)
    if more:
        yield f"    and {more:,} more"


def _show_held_out(console: Console, result: BuildResult, costs: Costs) -> None:
    from ngramspec.lab.builder.held_out import PROMPT

    held_out = result.held_out
    if held_out is None or not held_out.tokens:
        why = "held out: the corpus has too few documents"
        if result.totals.held_out:
            why = f"measured: no held-out document has more than {PROMPT} tokens"
        console.print(f"Nothing was {why}.", style="yellow")
        return
    drafter = {POOL_KIND: POOL_DRAFTER}.get(result.header.kind, result.header.kind)
    documents = number_of(held_out.documents, "held-out document")
    columns = ("", "tokens per pass", "drafted", "right", "acceptance", "speed-up")
    title = f"{drafter} on {documents}"
    table = make_table(columns, title=title, text=columns[:1], gap=2)
    for label, drafts in (
        ("without the file", held_out.without_file),
        ("with the file", held_out.with_file),
    ):
        mean, share = f"{drafts.mean_accepted_length:.3f}", f"{drafts.acceptance:.1%}"
        speed = f"{drafts.modelled_speedup:.3f}"
        table.add_row(label, mean, f"{drafts.drafted:,}", f"{drafts.right:,}", share, speed)
    console.print()
    console.print(table)
    console.print(_in_words(held_out), soft_wrap=True)
    console.print(f"{SPEED} {costs.source} ({costs.reason}).", soft_wrap=True, style="dim")


def _in_words(held_out: HeldOut) -> str:
    """Return a sentence on how much a file helps."""
    before, now = held_out.without_file.right, held_out.with_file.right
    of = f"Of {held_out.tokens:,} held-out tokens,"
    if now == before:
        return f"{of} the same number are drafted right with and without the file."
    share = f" ({(now - before) / before:+.1%})" if before else ""
    more = "more" if now > before else "fewer"
    return f"{of} {abs(now - before):,} {more} are drafted right with the file{share}."
