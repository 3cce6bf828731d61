"""`ngramspec cache inspect`: what a statistics file holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.files import JsonOptions, TokenizerOptions, tokenizer_flag
from ngramspec.cli.options import argument, command, flag
from ngramspec.cli.output import (
    make_table,
    number_of,
    plain_console,
    print_json,
    printable,
    size_text,
)
from ngramspec.errors import BackendError, VocabMismatchError

if TYPE_CHECKING:
    from rich.table import Table

    from ngramspec.text.tokenizers import Fingerprint, Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache inspect docs.ngx
  ngramspec cache inspect code.ngc --top 3 --model model.gguf
"""
MOST_NAMES = 5
Facts = dict[str, Any]
Lines = Iterator[tuple[str, str]]  # titles and their texts


@dataclass
class InspectOptions(TokenizerOptions, JsonOptions):
    """Options of `cache inspect`."""

    # fmt: off
    file: Path = argument()
    top: int = flag("--top", "Number of most frequent n-grams to show per size; 0: none, without a "
        "scan.", default=10, low=0, high=10000)
    model: Path | None = tokenizer_flag("its tokenizer shows n-grams as text")


@command("inspect", EPILOG)
def inspect(options: InspectOptions) -> None:
    """Show what a file holds.

    N-grams are shown as text if a tokenizer is given, or if the file is of the embedded model's.
    """
    from ngramspec.files.describe import describe
    from ngramspec.files.statistics import open_statistics

    tokenizer_path = options.resolve()
    statistics = open_statistics(options.file)
    tokenizer = tokenizer_of(statistics.fingerprint, tokenizer_path)
    facts = describe(statistics, options.top)
    facts["tokenizer"] = _tokenizer_name(
        statistics.fingerprint, tokenizer_path if tokenizer else None
    )
    if tokenizer is not None:
        for ngram in (one for size in facts.get("sizes", ()) for one in size.get("top", ())):
            ngram["text"] = text_of(tokenizer, ngram["token_ids"])
            follower = ngram["follower"]
            follower["text"] = text_of(tokenizer, [follower["token_id"]])
    if options.as_json:
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
        keys = f"{held['num_tokens']:,} tokens and {held['num_pairs']:,} pairs of tokens"
        yield "keys", f"{keys}, of {held['capacity']:,} that fit"
        yield "followers", f"{held['num_successors']:,}, {held['top']} at most each"
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


def embedded_fingerprint() -> Fingerprint | None:
    """Return the fingerprint of the embedded model, None when the package has none."""
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import fingerprint_of

    try:
        return fingerprint_of(embedded_model())
    except FileNotFoundError:
        return None


def tokenizer_of(fingerprint: bytes | None, tokenizer_path: Path | None) -> Tokenizer | None:
    """Return the tokenizer of a file: the given one, or the embedded model's if it matches.

    Args:
        fingerprint: The file's, None = unknown.
        tokenizer_path: --model or --tokenizer.

    Raises:
        VocabMismatchError: The given one is not the file's.
        FormatError, BackendError, OSError: As load_tokenizer.
    """
    from ngramspec.models import embedded_model
    from ngramspec.text.tokenizers import load_tokenizer

    if tokenizer_path is not None:
        tokenizer = load_tokenizer(tokenizer_path)
        mine = tokenizer.fingerprint.digest
        if fingerprint not in (None, mine):
            raise VocabMismatchError(
                f"the file was made with another tokenizer than {tokenizer_path}: its fingerprint "
                f"is {(fingerprint or b'').hex()}, not {mine.hex()}"
            )
        return tokenizer
    embedded = embedded_fingerprint()
    if fingerprint is None or embedded is None or embedded.digest != fingerprint:
        return None
    try:
        return load_tokenizer(embedded_model())
    except BackendError:
        return None  # without llama-cpp-python: token ids instead of text


def text_of(tokenizer: Tokenizer, token_ids: Iterable[int]) -> str:
    """Return the text of token ids; ids beyond the vocabulary become <id>."""
    parts: list[str] = []
    ids: list[int] = []
    for token in token_ids:
        if 0 <= token < tokenizer.fingerprint.vocab_size:
            ids.append(token)
            continue
        parts += [tokenizer.decode(ids), f"<{token}>"]
        ids = []
    return "".join([*parts, tokenizer.decode(ids)])


def quoted(tokenizer: Tokenizer | None, token_ids: Sequence[int]) -> str:
    """Return token ids as text in quotes with nothing invisible, or as numbers."""
    if tokenizer is None:
        return " ".join(map(str, token_ids))
    return repr(text_of(tokenizer, token_ids))
