"""`ngramspec cache lookup`: what a file would have a drafter draft after a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.group import SectionCommand
from ngramspec.cli.sizes import number_of
from ngramspec.cli.vocabulary import (
    given_path,
    json_option,
    needed_tokenizer,
    quoted,
    text_of,
    tokenizer_options,
)
from ngramspec.errors import InputError

if TYPE_CHECKING:
    from ngramspec.cli.cache_open import Statistics
    from ngramspec.tokenizers import Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache lookup code.ngc "def main("
  ngramspec cache lookup lookup.bin "once upon" --model model.gguf -n 16
  head -c 2000 main.py | ngramspec cache lookup code.pool -
"""
MOST_FOLLOWERS = 5


@click.command("lookup", cls=SectionCommand, epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("text")
@click.option(
    "-n",
    "--max-draft",
    type=click.IntRange(1, 4096),
    metavar="N",
    default=8,
    show_default=True,
    help="Longest draft, in tokens.",
)
@tokenizer_options("without it the embedded model's tokenizer, if the file is of that")
@json_option()
def lookup(file: Path, text: str, max_draft: int, as_json: bool, **options: Any) -> None:
    """Show what a file would draft after a text.

    TEXT - reads stdin. The draft is that of ngram-cache with this file as its static cache: the
    text itself counts too, as it does in a request. Of a hash pool it is that of ngram-mod, however
    short. Below it: what followed the last tokens of the text in the corpus.
    """
    from ngramspec.cli.cache_open import POOL_KIND, open_statistics

    given = given_path(options)
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    found = open_statistics(file)
    found.need_statistics("look up")
    tokenizer = needed_tokenizer(found.fingerprint, given)
    tokens = tokenizer.encode(text).tolist()
    if not tokens:
        raise InputError("the text is empty")
    facts: dict[str, Any] = {"path": str(file), "kind": found.kind, "token_ids": tokens}
    if found.kind == POOL_KIND:
        draft = _pool_draft(found, tokens, max_draft)
    else:
        draft = _cache_draft(found, tokens, max_draft)
        facts["sizes"] = [_size_facts(found, size, tokens, tokenizer) for size in found.sizes[::-1]]
    facts["draft"] = {"token_ids": draft, "text": text_of(tokenizer, draft)}
    if as_json:
        import json

        click.echo(json.dumps(facts))
        return
    _show(facts, tokenizer)


def _cache_draft(found: Statistics, tokens: list[int], most: int) -> list[int]:
    """Return the draft of ngram-cache; of a text of one token there is none."""
    from ngramspec.drafters import create_drafter

    drafter = create_drafter("ngram-cache", static=found.cache, n_draft=most)
    drafter.begin(0, tokens[:-1])
    drafter.accept(0, tokens[-1:], 0)
    draft: list[int] = drafter.propose(0, most).tolist()
    return draft


def _pool_draft(found: Statistics, tokens: list[int], most: int) -> list[int]:
    """Return what the pool knows after the text, token by token; the file does not change.

    Raises:
        InputError: The text is shorter than what is looked up.
    """
    import numpy as np

    from ngramspec._native.mod.pool import HashPool

    shape, container = found.shape, found.pool
    if len(tokens) < shape.n_match:
        raise InputError(
            f"the text has {number_of(len(tokens), 'token')}, lookups in {found.path} take "
            f"{shape.n_match}"
        )
    pool = HashPool(
        shape.capacity,
        shape.check_bits,
        shape.max_occupancy,
        container.header.vocab_size,
        found.cells().astype(np.uint32),
        np.frombuffer(container.view("counters"), "<i8").astype(np.int64),
    )
    tail = tokens[-shape.n_match :]
    draft: list[int] = []
    while len(draft) < most and (token := pool.lookup(np.array(tail, np.int32))) >= 0:
        draft.append(token)
        tail = [*tail[1:], token]
    return draft


def _size_facts(
    found: Statistics, size: int, tokens: list[int], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return what followed the last `size` tokens of the text."""
    import numpy as np

    ngram = tokens[-size:]
    followers = found.cache.followers(np.array(ngram, np.int32)) if len(ngram) == size else {}
    total = sum(followers.values())
    return {
        "size": size,
        "token_ids": ngram,
        "count": total,
        "num_followers": len(followers),
        "followers": [
            {
                "token_id": token,
                "text": text_of(tokenizer, [token]),
                "count": count,
                "share": count / total,
            }
            for token, count in list(followers.items())[:MOST_FOLLOWERS]
        ],
    }


def _show(facts: dict[str, Any], tokenizer: Tokenizer) -> None:
    from rich.text import Text

    from ngramspec.cli.cache_report import plain_console, plain_table

    console = plain_console()
    draft = facts["draft"]["token_ids"]
    text = number_of(len(facts["token_ids"]), "token")
    if draft:
        head = f"{number_of(len(draft), 'token')} would be drafted after {text}:"
        console.print(head, style="bold", soft_wrap=True)
        console.print(f"  {quoted(tokenizer, draft)}", style="green", soft_wrap=True)
        console.print(
            f"  {' | '.join(quoted(tokenizer, [token]) for token in draft)}", soft_wrap=True
        )
    else:
        console.print(f"Nothing would be drafted after {text}.", style="bold")
    for size in facts.get("sizes", ()):
        columns = [("follower", False), ("count", True), ("share", True)]
        ngram = quoted(tokenizer, size["token_ids"])
        if len(size["token_ids"]) < size["size"]:
            continue
        if not size["count"]:
            console.print(f"\n{size['size']}-gram {ngram}: not in the file", soft_wrap=True)
            continue
        console.print()
        of = f"{size['count']:,} times, {number_of(size['num_followers'], 'follower')}"
        console.print(f"{size['size']}-gram {ngram}: {of}", soft_wrap=True)
        table = plain_table(columns)
        for follower in size["followers"]:
            shown = Text(quoted(tokenizer, [follower["token_id"]]))
            table.add_row(shown, f"{follower['count']:,}", f"{follower['share']:.1%}")
        console.print(table)
