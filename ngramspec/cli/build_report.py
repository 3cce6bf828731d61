"""The summary of `ngramspec build-cache`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ngramspec.cli.sizes import duration_text, number_of, size_text
from ngramspec.formats.pool_file import KIND as POOL_KIND
from ngramspec.formats.suffix_file import KIND as INDEX_KIND

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec.build import BuildOptions, BuildResult, HeldOut
    from ngramspec.cli.build_order import Order
    from ngramspec.corpus import Problems

MOST_PROBLEMS = 5
MEGA = 1e6


def show_result(console: Console, result: BuildResult, order: Order) -> None:
    """Print what was built, from what, how fast, and what it is worth."""
    jobs = 0 if order.ray else order.means.jobs
    lines = [
        ("corpus", _corpus(result)),
        ("tokens", f"{result.totals.tokens:,}"),
        ("file", _file(result, order.options)),
        ("time", _time(result, jobs, whole=not order.resume)),
    ]
    console.print(f"{result.path}", style="bold", soft_wrap=True)
    for title, text in lines:
        console.print(f"  {title:8}{text}", soft_wrap=True)
    for line in _problems(result.problems):
        console.print(line, style="yellow", soft_wrap=True)
    if order.options.held_out:
        _show_held_out(console, result)


def _corpus(result: BuildResult) -> str:
    totals = result.totals
    parts = [f"{number_of(totals.documents, 'document')}, {size_text(totals.text_bytes)} of text"]
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
    """Return times and rate. whole: no part was read by a run before."""
    seconds, total = result.seconds, max(result.seconds.total, 1e-9)
    rate = result.totals.text_bytes / total / MEGA
    text = duration_text(seconds.total)
    if jobs:
        text += f" with {number_of(jobs, 'thread')}"
    text += f", {rate:.1f} MB/s" if whole else ", after the part that was done before"
    if seconds.tokenising_share:
        text += f"; {seconds.tokenising_share:.0%} of the work was the tokenizer's"
    return text


def _problems(problems: Problems) -> Iterator[str]:
    """Yield what was left out and the first reasons."""
    kinds = (
        (problems.num_skipped, "file", " skipped"),
        (problems.num_files, "file", " not read to the end"),
        (problems.num_records, "record", " left out"),
    )
    said = [f"{number_of(count, noun)}{what}" for count, noun, what in kinds if count]
    if not said:
        return
    yield f"  {', '.join(said)}{':' if problems.first else ''}"
    for problem in problems.first[:MOST_PROBLEMS]:
        yield f"    {problem}"
    more = problems.total - min(len(problems.first), MOST_PROBLEMS)
    if more:
        yield f"    and {more:,} more"


def _show_held_out(console: Console, result: BuildResult) -> None:
    found = result.held_out
    if found is None or not found.tokens:
        console.print("Nothing was held out: the corpus has too few documents.", style="yellow")
        return
    drafter = {POOL_KIND: "ngram-mod"}.get(result.header.kind, result.header.kind)
    documents = number_of(found.documents, "document")
    console.print()
    console.print(_held_out_table(found, f"{drafter} on {documents} that were not counted"))
    console.print(held_out_sentence(found), soft_wrap=True)


def _held_out_table(found: HeldOut, title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, 2, 0, 0)
    table.add_column("", no_wrap=True)
    for heading in ("mean accepted length", "drafted", "right", "acceptance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, drafts in (
        ("without the file", found.without_file),
        ("with the file", found.with_file),
    ):
        mean, share = drafts.mean_accepted_length, drafts.acceptance
        table.add_row(
            label, f"{mean:.3f}", f"{drafts.drafted:,}", f"{drafts.right:,}", f"{share:.1%}"
        )
    return table


def held_out_sentence(found: HeldOut) -> str:
    """Return in words what a file is worth."""
    before, now = found.without_file.right, found.with_file.right
    of = f"Of {found.tokens:,} held-out tokens, the file lets"
    if now == before:
        return f"{of} as many be drafted right as without it."
    share = f" ({(now - before) / before:+.1%})" if before else ""
    more = "more" if now > before else "fewer"
    return f"{of} {abs(now - before):,} {more} be drafted right{share}."
