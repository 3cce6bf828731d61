"""`ngramspec cache lookup`: what a drafter with a file would draft after a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ngramspec.cli.cache.vocabulary import needed_tokenizer, quoted, text_of
from ngramspec.cli.command import SectionCommand
from ngramspec.cli.options import (
    FILE,
    given_tokenizer,
    json_option,
    option,
    options,
    tokenizer_options,
)
from ngramspec.cli.output import make_table, number_of, plain_console, print_json

if TYPE_CHECKING:
    from ngramspec.text.tokenizers import Tokenizer

EPILOG = """\b
Examples:
  ngramspec cache lookup code.ngc "def main("
  ngramspec cache lookup lookup.bin "once upon" --model model.gguf -n 16
  head -c 2000 main.py | ngramspec cache lookup code.ngp -
"""
Facts = dict[str, Any]


@click.command("lookup", cls=SectionCommand, epilog=EPILOG)
@click.argument("file", type=FILE)
@click.argument("text")
@options(
    option("Options", "-n", "--max-draft", type=click.IntRange(1, 4096), default=8,
           help="Longest draft, in tokens."),
    tokenizer_options("default: the embedded model's tokenizer, if the file was built with it"),
    json_option(),
)  # fmt: skip
def lookup(file: Path, text: str, max_draft: int, as_json: bool, **values: Any) -> None:
    """Show what a file would draft after a text.

    If TEXT is -, it is read from stdin. The draft is that of ngram-cache with this file as its
    static cache; the text itself counts too, as in a request. For a hash pool it is that of
    ngram-mod, however short. Below it: what followed the last tokens of the text in the corpus.
    """
    from ngramspec.drafting.lookup import draft_after, followers_after
    from ngramspec.files.statistics import POOL_KIND, open_statistics

    tokenizer_path = given_tokenizer(values)
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    statistics = open_statistics(file)
    statistics.need_statistics("look up")
    tokenizer = needed_tokenizer(statistics.fingerprint, tokenizer_path)
    tokens = tokenizer.encode(text).tolist()
    draft = draft_after(statistics, tokens, max_draft)
    facts: Facts = {"path": str(file), "kind": statistics.kind, "token_ids": tokens}
    if statistics.kind != POOL_KIND:
        facts["sizes"] = [followers_after(statistics, tokens, n) for n in statistics.sizes[::-1]]
        for one in (one for size in facts["sizes"] for one in size["followers"]):
            one["text"] = text_of(tokenizer, [one["token_id"]])
    facts["draft"] = {"token_ids": draft, "text": text_of(tokenizer, draft)}
    if as_json:
        print_json(facts)
    else:
        _show(facts, tokenizer)


def _show(facts: Facts, tokenizer: Tokenizer) -> None:
    from rich.text import Text

    console = plain_console()
    draft = facts["draft"]["token_ids"]
    text = number_of(len(facts["token_ids"]), "token")
    if draft:
        head = f"{number_of(len(draft), 'token')} would be drafted after {text}:"
        console.print(head, style="bold", soft_wrap=True)
        console.print(f"  {quoted(tokenizer, draft)}", style="green", soft_wrap=True)
        each = " | ".join(quoted(tokenizer, [token]) for token in draft)
        console.print(f"  {each}", soft_wrap=True)
    else:
        console.print(f"Nothing would be drafted after {text}.", style="bold")
    for size in facts.get("sizes", ()):
        if len(size["token_ids"]) < size["size"]:
            continue
        ngram = f"{size['size']}-gram {quoted(tokenizer, size['token_ids'])}"
        if not size["count"]:
            console.print(f"\n{ngram}: not in the file", soft_wrap=True)
            continue
        of = f"{size['count']:,} times, {number_of(size['num_followers'], 'follower')}"
        console.print(f"\n{ngram}: {of}", soft_wrap=True)
        table = make_table(("follower", "count", "share"), text=["follower"], gap=2)
        for one in size["followers"]:
            shown = Text(quoted(tokenizer, [one["token_id"]]))
            table.add_row(shown, f"{one['count']:,}", f"{one['share']:.1%}")
        console.print(table)
