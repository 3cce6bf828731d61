"""`ngramspec build-cache`: statistics files from a corpus, for ngram-cache, ngram-mod, suffix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.command import (
    EXIT_INTERRUPTED,
    Failure,
    Interrupt,
    SectionCommand,
    error_line,
    interruptible,
)
from ngramspec.cli.options import (
    AT_LEAST_1,
    FILE,
    LEAST_FILE,
    NamedPath,
    NumberRange,
    ShareType,
    SizeType,
    check_output,
    given_tokenizer,
    json_option,
    option,
    options,
    output_option,
    tokenizer_options,
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
from ngramspec.cli.recorded import (
    FORMATS,
    key_option,
    load_recorded,
    mix_keys_option,
    provenance_of,
    recorded_files,
    refuse_mixed_keys,
    say_recorded,
    tokenizer_of,
    traces_of,
)
from ngramspec.errors import CapacityError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from ngramspec.lab.builder import BuildOptions, BuildResult, HeldOut, Progress, Resources
    from ngramspec.lab.corpus import Problems
    from ngramspec.lab.costs import Costs

EPILOG = """\b
Examples:
  ngramspec build-cache src docs -o code.ngc --model model.gguf --held-out 5%
  ngramspec build-cache chats.jsonl.gz -o chats.ngc --tokenizer tokenizer.json \\
      --role assistant --min-count 2 --max-size 50M
  unzip -p posts.zip | ngramspec build-cache - --format jsonl -o posts.ngc
  ngramspec build-cache src -o code.ngp --kind hash-pool --n-match 16
  ngramspec build-cache src -o code.ngx --kind suffix
  ngramspec build-cache requests.jsonl -o answers.ngx --kind suffix --held-out 10%
"""
CORPUS, WRITTEN, TOKENIZER = "Corpus", "File", "Tokenizer"
POOL, RUN, OUTPUT = "Hash pool", "Run", "Output"
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
SPEED = "speed-up: modelled, over plain decoding, drafts as long as pays; costs:"
NOTE = "stopping at the next document; Ctrl-C again quits at once"
GO_ON = "run the same command with --resume to continue"
MAKE_ROOM = f"make room there, then {GO_ON}"
COUNTED = "what was counted is kept: give --resume and a larger --min-count"
NO_ROOM = "make room there, or choose another place with -o and --work; nothing was kept"


@click.command("build-cache", cls=SectionCommand, epilog=EPILOG)
@click.argument("corpus", nargs=-1, required=True, type=NamedPath(readable=False))
@options(
    output_option(WRITTEN),
    option(WRITTEN, "--kind", type=click.Choice((*KINDS, POOL_DRAFTER)), default=CACHE_KIND,
           callback=lambda _, __, kind: POOL_KIND if kind == POOL_DRAFTER else kind,
           help="Counts for the drafter ngram-cache, a pool for ngram-mod, or an index for "
           "suffix; ngram-mod: the same as hash-pool."),
    option(WRITTEN, "--ngram-min", type=click.IntRange(1, 4),
           help="Shortest n-gram.  [default: 2]"),
    option(WRITTEN, "--ngram-max", type=click.IntRange(1, 4),
           help="Longest n-gram.  [default: 4]"),
    option(WRITTEN, "--min-count", type=AT_LEAST_1,
           help="Drop followers seen fewer than N times.  [default: 1]"),
    option(WRITTEN, "--max-size", type=SizeType(LEAST_FILE),
           help="Keep the most useful part within this file size, such as 50M."),
    option(WRITTEN, "--no-provenance", is_flag=True,
           help="Do not record file names, dates and options in the file."),
    tokenizer_options("default: the embedded model's tokenizer", TOKENIZER),
    option(CORPUS, "--include", multiple=True, metavar="PATTERN",
           help="Read only files that match PATTERN, written as in a .gitignore (repeatable)."),
    option(CORPUS, "--exclude", multiple=True, metavar="PATTERN",
           help="Skip files and folders that match PATTERN (repeatable)."),
    option(CORPUS, "--no-ignore", is_flag=True,
           help="Also read files that .gitignore excludes."),
    option(CORPUS, "--follow-links", is_flag=True,
           help="Also follow links that lead out of the given folder."),
    option(CORPUS, "--format", type=click.Choice(["text", "jsonl", "parquet", *FORMATS]),
           help="Format of all files; default: recorded requests, llama-server's logs and JSON "
           "arrays of chats by what they hold, others by file name, otherwise text."),
    key_option(CORPUS),
    mix_keys_option(CORPUS),
    option(CORPUS, "--field", metavar="NAME",
           help="Field of a record that holds the text, such as content or data.text."),
    option(CORPUS, "--role", multiple=True, metavar="ROLE",
           help="Read only chat messages of ROLE (repeatable)."),
    option(CORPUS, "--held-out", type=ShareType(),
           help="Share of the documents to hold out and measure with, such as 5%."),
    option(POOL, "--n-match", type=click.IntRange(1, 65535),
           help="Tokens hashed per lookup.  [default: 24]"),
    option(POOL, "--capacity", type=SizeType(), metavar="N",
           help="Cells, 4 bytes each.  [default: 4M]"),
    option(POOL, "--check-bits", type=click.IntRange(0, 8),
           help="Bits per cell against false hits.  [default: 8]"),
    option(POOL, "--max-occupancy", type=NumberRange(0, 0.95, min_open=True),
           help="Largest share of cells to fill.  [default: 0.5]"),
    option(RUN, "-j", "--jobs", type=click.IntRange(1, 1024),
           help="Threads.  [default: one per CPU]"),
    option(RUN, "--memory", type=SizeType(), default="2G",
           help="Memory limit (with Ray: per task)."),
    option(RUN, "--resume", is_flag=True, help="Continue a stopped build."),
    option(RUN, "--restart", is_flag=True, help="Discard a stopped build and start over."),
    option(RUN, "--work", type=FILE, metavar="FOLDER",
           help="Folder for intermediate files (with Ray: seen by all hosts); default: next to "
           "the output."),
    option(RUN, "--executor", type=click.Choice(["local", "ray"]), default="local",
           help="Where to build."),
    option(RUN, "--ray-address", metavar="ADDRESS", help="Address of the Ray cluster."),
    option(OUTPUT, "--no-progress", is_flag=True, help="Do not show progress."),
    json_option(OUTPUT),
)  # fmt: skip
def build_cache(**values: Any) -> None:
    """Build a statistics file from texts or recorded answers.

    CORPUS: files, folders, or - for stdin. Text and code, jsonl and parquet, also compressed (gz,
    zst, xz, bz2). Hidden files and files that a .gitignore excludes are skipped. PATTERN is a line
    of a .gitignore in the given folder: '*.py' in any folder, '/docs' only at the top,
    'src/**/*.c', 'tests/' with all below. The last match decides; '!keep.py' undoes a match.

    Of files of recorded requests (`serve --record`), of llama-server's logs and of JSON arrays of
    chats, the answers are counted; --held-out tells what such a file is worth.

    Duplicate documents count once. The tokenizer must be that of the model that will use the file.
    The same texts and options give the same bytes, whatever --jobs and --memory are.
    """
    from ngramspec.lab.builder import Resources
    from ngramspec.lab.costs import saved_costs

    check_output(values["output"])
    _refuse_misplaced(values)
    values["tokenizer"] = given_tokenizer(values)
    files = recorded_files(values["corpus"], values["format"])
    values["costs"] = saved_costs(values["tokenizer"] if values["held_out"] else None)
    if files:
        _from_recorded(values, files)
        return
    settings = _build_options(values)
    jobs = values["jobs"] or _num_cpus()
    resources = Resources(jobs=jobs, memory=values["memory"], work=values["work"])
    with interruptible(NOTE) as interrupt:
        result = _build(values, settings, resources, interrupt)
    if values["as_json"]:
        print_json(result.as_dict())
    else:
        _show(plain_console(), result, settings, values)


def _from_recorded(values: dict[str, Any], files: Sequence[Path]) -> None:
    """Build from the answers of recorded requests."""
    from ngramspec.lab.builder.tokens import build_from_tokens
    from ngramspec.lab.recordings.traces import Cut

    for name in NOT_RECORDED:
        _refuse(values, (name,), True, "files of text")
    _refuse(values, ("ray_address",), True, "files of text")
    if values["executor"] == "ray":
        raise click.UsageError("recorded requests are for --executor local")
    loaded, problems = load_recorded(files, values, Cut(max_prompt=1, max_output=0))
    say_recorded(loaded, problems, brief=values["as_json"])
    traces = traces_of(loaded)
    refuse_mixed_keys(traces, values["mix_keys"])
    settings = _build_options({**values, "format": None})
    answers = (one.output for trace in traces for one in trace.requests)
    result = build_from_tokens(
        answers,
        values["output"],
        tokenizer_of(values, loaded),
        settings,
        provenance_of(values, loaded) if settings.provenance else None,
    )
    result.problems.merge(problems)
    if values["as_json"]:
        print_json(result.as_dict())
    else:
        _show(plain_console(), result, settings, {**values, "jobs": 1})


def _refuse_misplaced(values: Mapping[str, Any]) -> None:
    """Refuse options that are for another kind of file or for another executor."""
    is_ray = values["executor"] == "ray"
    for kinds, names in OF_KINDS.items():
        _refuse(values, names, values["kind"] not in kinds, f"--kind {' or '.join(kinds)}")
    _refuse(values, ("jobs",), is_ray, "--executor local")
    _refuse(values, ("ray_address",), not is_ray, "--executor ray")
    if values["resume"] and values["restart"]:
        raise click.UsageError("give either --resume or --restart")


def _refuse(values: Mapping[str, Any], names: tuple[str, ...], wrong: bool, needed: str) -> None:
    for name in names:
        value = values[name]
        is_given = value is not None and value is not False and value != ()  # 0 is given
        if wrong and is_given:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {needed}")


def _build_options(values: Mapping[str, Any]) -> BuildOptions:
    """Return the build's options; options not given keep their defaults."""
    from ngramspec.files.pool_file import PoolShape
    from ngramspec.lab.builder import BuildOptions

    shape = {name: values[name] for name in POOL_SHAPE if values[name] is not None}
    cells = shape.get("capacity", LEAST_CELLS)
    if cells & (cells - 1) or not LEAST_CELLS <= cells <= MOST_CELLS:
        raise InputError(f"--capacity must be a power of two in 1K..2G, got {cells}")
    same = ("kind", "include", "exclude", "format", "field", "follow_links")
    return BuildOptions(
        **{name: values[name] for name in same},
        **{name: values[name] for name in NGRAM_SIZES if values[name]},
        pool=PoolShape(**shape),
        min_count=values["min_count"] or 1,
        max_bytes=values["max_size"],
        held_out=values["held_out"] or 0.0,
        costs=values["costs"].table,
        gitignore=not values["no_ignore"],
        roles=values["role"],
        provenance=not values["no_provenance"],
    )


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _build(
    values: Mapping[str, Any], settings: BuildOptions, resources: Resources, interrupt: Interrupt
) -> BuildResult:
    """Build; Ctrl-C ends the command with its exit code and a line on how to continue."""
    from ngramspec.cli.build_progress import build_progress
    from ngramspec.files.atomic import DISK_FULL
    from ngramspec.lab.builder.checkpoint import has_checkpoint
    from ngramspec.lab.builder.local import BuildStopped
    from ngramspec.models import embedded_model

    if values["tokenizer"] is None:
        name = embedded_model().name
        click.echo(f"no --model or --tokenizer given: using the embedded model {name}", err=True)
    is_ray = values["executor"] == "ray"
    late = finishing(values["kind"], is_ray=is_ray)
    try:
        with build_progress(
            interrupt, visible=not values["no_progress"], finishing=late
        ) as progress:
            return (_with_ray if is_ray else _locally)(values, settings, resources, progress)
    except BuildStopped as stopped:
        line = f"{stopped}; {GO_ON}"
    except KeyboardInterrupt:
        saved = has_checkpoint(resources.work_folder(values["output"]))
        line = f"ended; {GO_ON} from the last checkpoint" if saved else "ended; nothing was kept"
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        saved = has_checkpoint(resources.work_folder(values["output"]))
        raise Failure(f"{error_line(error)}: {MAKE_ROOM if saved else NO_ROOM}") from error
    except CapacityError as error:
        if not has_checkpoint(resources.work_folder(values["output"])):
            raise
        raise Failure(f"{error_line(error)}; {COUNTED}") from error
    click.echo(line, err=True)
    raise click.exceptions.Exit(EXIT_INTERRUPTED)


def finishing(kind: str, *, is_ray: bool) -> tuple[str, ...]:
    """Return the phases of a build that Ctrl-C does not stop."""
    from ngramspec.cli.build_progress import FINISHING

    # Tasks merge what is written, and waiting for them can be stopped; an index is written here.
    return ("measuring",) if is_ray and kind != INDEX_KIND else FINISHING


def _locally(
    values: Mapping[str, Any], settings: BuildOptions, resources: Resources, progress: Progress
) -> BuildResult:
    from ngramspec.lab.builder import build
    from ngramspec.lab.builder.memory import return_large_blocks
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import load_tokenizer

    return_large_blocks()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one core for each of --jobs
    return build(
        values["corpus"],
        values["output"],
        load_tokenizer(values["tokenizer"] or embedded_model()),
        settings,
        resources,
        progress,
        resume=values["resume"],
        restart=values["restart"],
    )


def _with_ray(
    values: Mapping[str, Any], settings: BuildOptions, resources: Resources, progress: Progress
) -> BuildResult:
    from ngramspec.lab.builder.ray_executor import build_on_ray
    from ngramspec.models import embedded_model

    return build_on_ray(
        values["corpus"],
        values["output"],
        values["tokenizer"] or embedded_model(),
        settings,
        progress,
        address=values["ray_address"],
        memory=resources.memory,
        work=resources.work,
        resume=values["resume"],
        restart=values["restart"],
    )


def _show(
    console: Console, result: BuildResult, settings: BuildOptions, values: Mapping[str, Any]
) -> None:
    """Print the file, its corpus, the time, and how much it helps on held-out documents."""
    jobs = 0 if values["executor"] == "ray" else values["jobs"] or _num_cpus()
    lines = [
        ("corpus", _corpus(result)),
        ("tokens", f"{result.totals.tokens:,}"),
        ("file", _file(result, settings)),
        ("time", _time(result, jobs, whole=not values["resume"])),
    ]
    console.print(f"{result.path}", style="bold", soft_wrap=True)
    for title, text in lines:
        console.print(f"  {title:8}{text}", soft_wrap=True)
    for line in _problems(result.problems):
        console.print(line, style="yellow", soft_wrap=True)
    if settings.held_out:
        _show_held_out(console, result, values["costs"])


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
    held_out = result.held_out
    if held_out is None or not held_out.tokens:
        console.print("Nothing was held out: the corpus has too few documents.", style="yellow")
        return
    drafter = {POOL_KIND: POOL_DRAFTER}.get(result.header.kind, result.header.kind)
    documents = number_of(held_out.documents, "document")
    columns = ("", "tokens per pass", "drafted", "right", "acceptance", "speed-up")
    title = f"{drafter} on {documents} that were not counted"
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
