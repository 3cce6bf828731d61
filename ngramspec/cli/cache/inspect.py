"""`ngramspec cache inspect`: what a statistics file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.cache.vocabulary import embedded_fingerprint, quoted, text_of, tokenizer_of
from ngramspec.cli.command import SectionCommand
from ngramspec.cli.options import (
    FILE,
    given_tokenizer,
    json_option,
    option,
    options,
    tokenizer_options,
)
from ngramspec.cli.output import (
    make_table,
    number_of,
    plain_console,
    print_json,
    printable,
    size_text,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.text.tokenizers import Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache inspect code.ngc
  ngramspec cache inspect code.ngc --top 3 --model model.gguf
  ngramspec cache inspect code.ngp --json
"""
MOST_NAMES = 5
Facts = dict[str, Any]
Lines = Iterator[tuple[str, str]]  # titles and their texts


@click.command("inspect", cls=SectionCommand, epilog=EPILOG)
@click.argument("file", type=FILE)
@options(
    option("Options", "--top", type=click.IntRange(0, 10000), default=10,
           help="Number of most frequent n-grams to show per size; 0: none, without a scan."),
    tokenizer_options("its tokenizer shows n-grams as text"),
    json_option(),
)  # fmt: skip
def inspect(file: Path, top: int, as_json: bool, **values: Any) -> None:
    """Show what a file holds.

    N-grams are shown as text if a tokenizer is given, or if the file is of the embedded model's.
    """
    from ngramspec.files.describe import describe
    from ngramspec.files.statistics import open_statistics

    tokenizer_path = given_tokenizer(values)
    statistics = open_statistics(file)
    tokenizer = tokenizer_of(statistics.fingerprint, tokenizer_path)
    facts = describe(statistics, top)
    facts["tokenizer"] = _tokenizer_name(
        statistics.fingerprint, tokenizer_path if tokenizer else None
    )
    if tokenizer is not None:
        for ngram in (one for size in facts.get("sizes", ()) for one in size.get("top", ())):
            ngram["text"] = text_of(tokenizer, ngram["token_ids"])
            follower = ngram["follower"]
            follower["text"] = text_of(tokenizer, [follower["token_id"]])
    if as_json:
        print_json(facts)
    else:
        _show(facts, tokenizer)


def _tokenizer_name(fingerprint: bytes | None, tokenizer_path: Path | None) -> str | None:
    embedded = embedded_fingerprint()
    if fingerprint is not None and embedded is not None and fingerprint == embedded.digest:
        return "the embedded model's"
    return None if tokenizer_path is None else f"that of {tokenizer_path}"


def _show(facts: Facts, tokenizer: Tokenizer | None) -> None:
    console = plain_console()
    console.print(printable(facts["path"]), style="bold", soft_wrap=True)
    for title, text in (*_head_lines(facts), *_about_lines(facts["about"])):
        console.print(f"  {title:11}{printable(text)}", soft_wrap=True)
    sizes = facts.get("sizes", ())
    if sizes:
        console.print()
        console.print(_size_table(sizes))
    for size in sizes:
        if size.get("top"):
            console.print(_top_table(size, tokenizer))


def _head_lines(facts: Facts) -> Lines:
    by = f", version {facts['version']}, by {facts['producer']}" if "version" in facts else ""
    yield "kind", facts["kind"] + by
    yield "file", f"{size_text(facts['file_bytes'])}, {facts['modified'] or 'of an unknown date'}"
    digest = facts["fingerprint"]
    if digest or facts["tokenizer"]:
        name = facts["tokenizer"] or "not the embedded model's"
        yield "tokenizer", f"{digest} ({name})" if digest else f"not stated, shown by {name}"
    else:
        yield "tokenizer", "not stated"
    if facts["vocab_size"]:
        yield "vocabulary", f"{facts['vocab_size']:,} tokens"
    if "pool" in facts:
        yield from _pool_lines(facts["pool"])
    elif "index" in facts:
        index = facts["index"]
        tokens = f"{index['num_tokens']:,} in {number_of(index['num_texts'], 'text')}"
        yield "tokens", tokens + _each(index["bytes_per_token"])
        yield "contexts", f"{index['num_positions']:,} positions where one was seen"
    elif "successors" in facts:
        held = facts["successors"]
        contexts = f"{held['num_tokens']:,} tokens and {held['num_pairs']:,} pairs of tokens"
        yield "contexts", f"{contexts}, of {held['capacity']:,} that fit"
        yield "successors", f"{held['num_successors']:,}, {held['top']} at most each"
    else:
        yield "n-grams", f"{facts['num_ngrams']:,}" + _each(facts["bytes_per_ngram"])


def _each(num_bytes: float | None) -> str:
    return f", {num_bytes:.1f} bytes each" if num_bytes else ""


def _pool_lines(pool: Mapping[str, Any]) -> Lines:
    shape = f"{pool['n_match']} tokens per lookup, {pool['capacity']:,} cells"
    yield "shape", f"{shape}, {pool['check_bits']} check bits"
    most = f"{pool['max_occupancy']:.0%} at most"
    yield "in use", f"{pool['num_used']:,} cells, {pool['occupancy']:.1%} ({most})"
    levels = (f"{num:,} at {level}" for level, num in enumerate(pool["by_confidence"]))
    yield "confidence", ", ".join(levels)
    so_far = pool["counters"]
    replaced = f"{so_far['num_replaced']:,} replaced, {so_far['num_collided']:,} collided"
    yield "so far", f"{replaced}, {so_far['num_aged']:,} aged"


def _about_lines(about: Mapping[str, Any]) -> Lines:
    if not about:
        yield "made from", "not stated"
    for part in about.get("merged", ()):
        yield "merged", _origin(part) if part else "a file that states no origin"
    if "corpus" in about:
        yield "made from", _origin(about)
        yield "with", _in_words(about.get("options", {}))
    for step in about.get("pruned", ()):
        yield "pruned to", _in_words(step)


def _origin(about: Mapping[str, Any]) -> str:
    if "corpus" not in about:
        return json.dumps(about, ensure_ascii=False)
    names = about["corpus"]
    more = len(names) - MOST_NAMES + about.get("more_files", 0)
    text = ", ".join(names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    text += f"; {number_of(about.get('documents', 0), 'document')}, "
    text += f"{about.get('tokens', 0):,} tokens by {about.get('tokenizer')}"
    newest = about.get("newest_input")
    return text + (f", newest of {newest}" if newest else "")


def _in_words(settings: Mapping[str, Any]) -> str:
    """Return options as text, without the empty ones."""
    parts = [f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items()
            if v not in (None, [], False, 0.0)]  # fmt: skip
    return ", ".join(parts)


def _size_table(sizes: list[Facts]) -> Table:
    columns = {"size": "tokens", "num_ngrams": "n-grams", "bytes": "bytes", "num_pairs": "pairs",
               "occurrences": "occurrences"}  # fmt: skip
    keys = [key for key in columns if sizes[0].get(key) is not None]
    rows = ([f"{facts[key]:,}" for key in keys] for facts in sizes)
    return make_table([columns[key] for key in keys], rows, gap=2)


def _top_table(facts: Facts, tokenizer: Tokenizer | None) -> Table:
    """Return a table of a size's n-grams: count, text, top follower, its share, followers."""
    from rich.text import Text

    columns = ("count", "n-gram", "most often followed by", "share", "followers")
    title = f"Most frequent {facts['size']}-grams"
    table = make_table(columns, title=title, text=columns[1:3], gap=2)
    for ngram in facts["top"]:
        follower = ngram["follower"]
        table.add_row(
            f"{ngram['count']:,}",
            Text(quoted(tokenizer, ngram["token_ids"])),
            Text(quoted(tokenizer, [follower["token_id"]])),
            f"{follower['count'] / ngram['count']:.0%}",
            f"{ngram['num_followers']:,}",
        )
    return table
