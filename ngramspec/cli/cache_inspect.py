"""`ngramspec cache inspect`: what a statistics file holds."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.vocabulary import (
    embedded_fingerprint,
    given_path,
    json_option,
    text_of,
    tokenizer_of,
    tokenizer_options,
)

if TYPE_CHECKING:
    from ngramspec.cli.cache_open import Statistics
    from ngramspec.tokenizers import Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache inspect code.ngc
  ngramspec cache inspect code.ngc --top 3 --model model.gguf
  ngramspec cache inspect code.pool --json
"""
COUNTERS = ("num_used", "hand", "num_replaced", "num_collided", "num_aged")


@click.command("inspect", cls=SectionCommand, epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(0, 10000),
    metavar="N",
    default=10,
    show_default=True,
    help="Most frequent n-grams of each size; 0: none, and no pass over the file.",
)
@tokenizer_options("shows n-grams as text")
@json_option()
def inspect(file: Path, top: int, as_json: bool, **options: Any) -> None:
    """Tell what a file holds.

    N-grams are shown as text when the tokenizer is known: given, or the embedded model's.
    """
    from ngramspec.cli.cache_open import INDEX_KIND, POOL_KIND, open_statistics

    given = given_path(options)
    found = open_statistics(file)
    tokenizer = tokenizer_of(found.fingerprint, given)
    facts = _facts(found, tokenizer, given)
    if found.kind == POOL_KIND:
        facts["pool"] = _pool_facts(found)
    elif found.kind == INDEX_KIND:
        facts["index"] = _index_facts(found)
    else:
        facts["sizes"] = [_size_facts(found, size, top, tokenizer) for size in found.sizes]
    facts["about"] = found.about
    if as_json:
        import json

        click.echo(json.dumps(facts))
        return
    from ngramspec.cli.cache_report import show_facts

    show_facts(facts, tokenizer)


def _facts(found: Statistics, tokenizer: Tokenizer | None, given: Path | None) -> dict[str, Any]:
    """Return what holds for every kind of file."""
    from ngramspec.cli.cache_open import INDEX_KIND, POOL_KIND

    header = found.container.header if found.container is not None else None
    facts: dict[str, Any] = {"path": str(found.path), "kind": found.kind}
    if header is not None:
        facts |= {"version": header.version, "producer": header.producer}
    modified = datetime.fromtimestamp(int(found.path.stat().st_mtime), timezone.utc)
    facts |= {"file_bytes": found.file_bytes, "modified": modified.isoformat()}
    fingerprint = found.fingerprint
    embedded = embedded_fingerprint()
    name = None
    if fingerprint is not None and embedded is not None and fingerprint == embedded.digest:
        name = "the embedded model's"
    elif tokenizer is not None:
        name = f"that of {given}"
    facts["fingerprint"] = fingerprint.hex() if fingerprint else None
    facts["tokenizer"] = name
    facts["vocab_size"] = found.vocab_size or None
    if found.kind not in (POOL_KIND, INDEX_KIND):
        num = sum(found.cache.num_ngrams(size) for size in found.sizes)
        facts |= {
            "ngram_min": min(found.sizes, default=0),
            "ngram_max": max(found.sizes, default=0),
            "num_ngrams": num,
            "bytes_per_ngram": found.file_bytes / num if num else None,
        }
    return facts


def _size_facts(
    found: Statistics, size: int, top: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Return what one n-gram size has; with top > 0 after a pass over it."""
    cache = found.cache
    sections = cache.sections(size)
    num_ngrams = cache.num_ngrams(size)
    num_bytes = 4 * sum(map(len, sections or ())) if found.container is not None else None
    facts: dict[str, Any] = {"size": size, "num_ngrams": num_ngrams, "bytes": num_bytes}
    if not top:
        return facts
    from ngramspec._native.files.unpack import EntryReader
    from ngramspec.cli.cache_survey import survey

    made = survey(EntryReader(cache, size), size, top)
    facts |= {"num_pairs": made.num_pairs, "occurrences": made.occurrences}
    facts["top"] = [
        _ngram_facts(found, ngram.tolist(), int(count), tokenizer)
        for ngram, count in zip(made.top, made.counts, strict=True)
    ]
    return facts


def _ngram_facts(
    found: Statistics, ngram: list[int], count: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    followers = found.cache.followers(ngram)
    best, best_count = next(iter(followers.items()))
    facts: dict[str, Any] = {"token_ids": ngram, "count": count, "num_followers": len(followers)}
    follower: dict[str, Any] = {"token_id": best, "count": best_count}
    if tokenizer is not None:
        facts["text"] = text_of(tokenizer, ngram)
        follower["text"] = text_of(tokenizer, [best])
    return facts | {"follower": follower}


def _pool_facts(found: Statistics) -> dict[str, Any]:
    import numpy as np

    shape, cells = found.shape, found.cells()
    used = int(np.count_nonzero(cells))
    confident = np.bincount(cells[cells != 0] >> 30, minlength=4) if used else np.zeros(4, int)
    counters = np.frombuffer(found.pool.view("counters"), "<i8")
    return {
        "n_match": shape.n_match,
        "capacity": shape.capacity,
        "check_bits": shape.check_bits,
        "max_occupancy": shape.max_occupancy,
        "num_used": used,
        "occupancy": used / shape.capacity,
        "by_confidence": confident.tolist(),
        "counters": dict(zip(COUNTERS, counters.tolist(), strict=False)),
    }


def _index_facts(found: Statistics) -> dict[str, Any]:
    from ngramspec.formats.suffix_file import index_of

    container = found.opened
    index = index_of(container)
    return {
        "num_tokens": index.num_tokens,
        "num_texts": index.num_texts,
        "num_positions": container.header.num_ngrams,
        "bytes_per_token": found.file_bytes / index.num_tokens if index.num_tokens else None,
        "sections": {name: section.size for name, section in container.sections.items()},
    }
