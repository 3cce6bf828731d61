"""What `ngramspec cache inspect` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ngramspec.cli.sizes import number_of, size_text
from ngramspec.cli.vocabulary import quoted

if TYPE_CHECKING:
    from ngramspec.tokenizers import Tokenizer

MOST_NAMES = 5


def plain_console() -> Console:
    """Return a console for stdout that prints text as it is."""
    return Console(highlight=False, markup=False, emoji=False)


def plain_table(columns: Sequence[tuple[str, bool]], title: str = "") -> Table:
    """Return a table. columns: heading, and whether it is of numbers."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, 2, 0, 0)
    for heading, numbers in columns:
        if numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    return table


def show_facts(facts: Mapping[str, Any], tokenizer: Tokenizer | None) -> None:
    """Print the facts of a file."""
    console = plain_console()
    console.print(facts["path"], style="bold", soft_wrap=True)
    for title, text in (*_head_lines(facts), *_about_lines(facts["about"])):
        console.print(f"  {title:11}{text}", soft_wrap=True)
    sizes = facts.get("sizes", ())
    if sizes:
        console.print()
        console.print(_size_table(sizes))
    for size in sizes:
        if size.get("top"):
            console.print(_top_table(size, tokenizer))


def _head_lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "kind", facts["kind"] + _version(facts)
    yield "file", f"{size_text(facts['file_bytes'])}, {facts['modified']}"
    known = facts["fingerprint"]
    if known or facts["tokenizer"]:
        name = facts["tokenizer"] or "not the embedded model's"
        yield "tokenizer", f"{known} ({name})" if known else f"not stated, shown by {name}"
    else:
        yield "tokenizer", "not stated"
    if facts["vocab_size"]:
        yield "vocabulary", f"{facts['vocab_size']:,} tokens"
    if "pool" in facts:
        yield from _pool_lines(facts["pool"])
    elif "index" in facts:
        yield from _index_lines(facts["index"])
    else:
        each = facts["bytes_per_ngram"]
        yield "n-grams", f"{facts['num_ngrams']:,}" + (f", {each:.1f} bytes each" if each else "")


def _version(facts: Mapping[str, Any]) -> str:
    return f", version {facts['version']}, by {facts['producer']}" if "version" in facts else ""


def _pool_lines(pool: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    most = f"{pool['max_occupancy']:.0%} at most"
    yield (
        "shape",
        (
            f"{pool['n_match']} tokens per lookup, {pool['capacity']:,} cells, "
            f"{pool['check_bits']} check bits"
        ),
    )
    yield "in use", f"{pool['num_used']:,} cells, {pool['occupancy']:.1%} ({most})"
    levels = ", ".join(f"{num:,} at {level}" for level, num in enumerate(pool["by_confidence"]))
    yield "confidence", levels
    counters = pool["counters"]
    yield (
        "so far",
        (
            f"{counters['num_replaced']:,} replaced, {counters['num_collided']:,} collided, "
            f"{counters['num_aged']:,} aged"
        ),
    )


def _index_lines(index: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    each = index["bytes_per_token"]
    texts = number_of(index["num_texts"], "text")
    yield (
        "tokens",
        f"{index['num_tokens']:,} in {texts}" + (f", {each:.1f} bytes each" if each else ""),
    )
    yield "contexts", f"{index['num_positions']:,} places where some were seen"


def _about_lines(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not about:
        yield "made from", "not stated"
    for part in about.get("merged", ()):
        yield "merged", _origin(part) if part else "a file that states no origin"
    if "corpus" in about:
        yield "made from", _origin(about)
        yield "with", _options(about.get("options", {}))
    for step in about.get("pruned", ()):
        yield "pruned to", _options(step)


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


def _options(options: Mapping[str, Any]) -> str:
    """Return options in words, without those that say nothing."""
    said = [f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items()
            if v not in (None, [], False, 0.0)]  # fmt: skip
    return ", ".join(said)


def _size_table(sizes: Sequence[Mapping[str, Any]]) -> Table:
    columns = {"size": "tokens", "num_ngrams": "n-grams", "bytes": "bytes", "num_pairs": "pairs"}
    columns["occurrences"] = "occurrences"
    known = [key for key in columns if sizes[0].get(key) is not None]
    table = plain_table([(columns[key], True) for key in known])
    for facts in sizes:
        table.add_row(*(f"{facts[key]:,}" for key in known))
    return table


def _top_table(facts: Mapping[str, Any], tokenizer: Tokenizer | None) -> Table:
    columns = [("count", True), ("n-gram", False), ("most often followed by", False)]
    columns += [("share", True), ("followers", True)]
    table = plain_table(columns, f"Most frequent {facts['size']}-grams")
    for row in _top_rows(facts, tokenizer):
        table.add_row(*map(Text, row))
    return table


def _top_rows(facts: Mapping[str, Any], tokenizer: Tokenizer | None) -> Iterator[tuple[str, ...]]:
    """Yield count, n-gram, most frequent follower and its share of the n-grams of a size."""
    for ngram in facts["top"]:
        follower = ngram["follower"]
        yield (
            f"{ngram['count']:,}",
            quoted(tokenizer, ngram["token_ids"]),
            quoted(tokenizer, [follower["token_id"]]),
            f"{follower['count'] / ngram['count']:.0%}",
            f"{ngram['num_followers']:,}",
        )
