"""What commands print: JSON, tables, sizes and numbers in words, chats, drafts, what they tell."""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ngramspec.messages import size_text as size_text  # a word like the others here

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ngramspec.costs import CostTable
    from ngramspec.engine.info import Drafting
    from ngramspec.text.chat.delta import Delta
    from ngramspec.text.chat.format import ChatFormat

ACCEPTED_STYLE = "green"
OWN_STYLE = "bold"
OPEN, CLOSE = "«", "»"  # marks of accepted text where there is no colour
THINK_OPEN, THINK_CLOSE = "<think>\n", "\n</think>\n\n"
MOST_RIGHT = 15  # tokens of a draft: longer ones are seldom right to their end
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Piece = tuple[str, bool]  # text, and whether accepted draft tokens made it


def print_json(facts: Any, indent: int | None = None) -> None:
    click.echo(json.dumps(facts, indent=indent))


def printable(text: str) -> str:
    """Return one line of what strangers may have written, such as a file's name.

    Control characters, which the terminal would obey, are written as Python does: "\\x1b".
    """
    return CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def plain_console() -> Console:
    """Return a console for stdout that prints text as it is."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]] = (),
    *,
    title: str = "",
    text: Collection[str] = (),
    gap: int = 1,
) -> Table:
    """Return a table.

    Args:
        columns: The headings.
        rows: Its cells; more may be added.
        title: Line above the table.
        text: Headings of the columns that hold text; the others hold numbers.
        gap: Spaces between columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, gap, 0, 0)
    for heading in columns:
        if heading in text:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def duration_text(seconds: float) -> str:
    """Return a duration as text, such as "0.3 s", "4:05" or "1:00:03"."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 file" or "2,000 files"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def speedup_cell(speedup: float, is_plain: bool = False) -> Text:
    """Return a speed-up, green if drafts pay and red if they cost time."""
    from rich.text import Text

    style = "green" if speedup >= 1.05 else "red" if speedup <= 0.95 else ""
    return Text(f"{speedup:.2f}x", style="" if is_plain else style)


def has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def marked_text(pieces: Iterable[Piece]) -> str:
    """Return the text with accepted draft tokens between marks, line by line."""
    return "".join(_mark_lines(text) if is_accepted else text for text, is_accepted in pieces)


def _mark_lines(text: str) -> str:
    return "\n".join(f"{OPEN}{line}{CLOSE}" if line else "" for line in text.split("\n"))


def styled(pieces: Iterable[Piece]) -> Iterator[tuple[str, str]]:
    for text, is_accepted in pieces:
        yield text, ACCEPTED_STYLE if is_accepted else OWN_STYLE


def decode_pieces(
    piece: Callable[[int], bytes], token_ids: Iterable[int], accepted: Iterable[bool]
) -> list[Piece]:
    """Return the text in pieces, neighbours of the same kind joined.

    Args:
        piece: Returns the bytes of a token, as LlamaModel.piece.
        token_ids: The text; a character of several tokens counts for the last of them.
        accepted: For each token whether a draft guessed it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[Piece] = []
    for token_id, is_accepted in zip(token_ids, accepted, strict=True):
        text = decoder.decode(piece(int(token_id)))
        if pieces and pieces[-1][1] == bool(is_accepted):
            text = pieces.pop()[0] + text
        pieces.append((text, bool(is_accepted)))
    pieces.append((decoder.decode(b"", True), False))
    return [part for part in pieces if part[0]]


class AnswerText:
    """Turns the text of one answer, as it comes, into what is printed.

    Reasoning stands between <think> and </think>, whatever marks the model writes; its other marks
    are left out. An answer without reasoning or marks stays as it is, to the byte.

    format: How the model writes its answer; None: all of it stays as it is.
    """

    def __init__(self, format: ChatFormat | None) -> None:
        self._parser = None if format is None else format.parser()
        self._kind = ""  # of what was printed last

    def pieces(self, spans: Iterable[Piece], last: bool) -> Iterator[Piece]:
        """Yield what is certain by now of the next spans; with `last` all the rest."""
        if self._parser is None:
            yield from spans
            return
        for text, accepted in spans:
            for delta in self._parser.feed(text):
                yield from self._shown(delta, accepted)
        if last:
            for delta in self._parser.feed("", last=True):
                yield from self._shown(delta, False)

    def _shown(self, delta: Delta, accepted: bool) -> Iterator[Piece]:
        before, self._kind = self._kind, delta.kind
        if delta.kind == "reasoning" and before != "reasoning":
            yield f"\n\n{THINK_OPEN}" if before else THINK_OPEN, False
        elif delta.kind == "content" and before == "reasoning":
            yield THINK_CLOSE, False
        yield delta.text, accepted


def drafting_line(drafting: Drafting) -> str:
    parts = [
        f"{name} ({size_text(size)})" if size else name for name, size in drafting.drafters.items()
    ]
    small = drafting.draft_model
    if small is not None:
        size = f" ({size_text(small.nbytes)})" if small.nbytes else ""
        kind = "draft model " if small.kind == "draft-simple" else ""
        other = ", of another vocabulary" if small.vocabulary == "another" else ""
        named = f"{kind}{small.name} of up to {small.n_max}{other}{size}"
        parts.append(f"then {named}" if parts else named)
    if not drafting.active:
        return f"drafters none: {'; '.join(drafting.notes)}"
    branches = ""
    if drafting.branches > 1:
        branches = f" in {drafting.branches} branches ({size_text(drafting.branch_bytes)} at most)"
    parts.append(f"up to {drafting.longest} tokens{branches} by policy {drafting.policy}")
    state = size_text(drafting.state_bytes)
    if drafting.rollback == "snapshots":
        parts.append(f"{state} of state for each of them in each slot")
    elif drafting.rollback == "saved":
        parts.append(f"{state} of state saved for a draft")
    return "; ".join([f"drafters {', '.join(parts)}", *drafting.notes])


def gain_line(costs: CostTable, longest: int = MOST_RIGHT) -> str:
    """Return what right drafts of up to `longest` tokens can give as one line, "" for nothing."""
    from ngramspec.engine.info import best_pass

    size, times = best_pass(costs, min(longest, MOST_RIGHT))
    if times >= size:
        return ""
    return (
        f"a pass over {size} tokens costs {times:.1f} times one: right drafts make answers up to "
        f"{size / times:.1f} times as fast here"
    )


class _Stderr(logging.Handler):
    """Writes lines as they are, at whatever level the log is."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


TELLER = logging.getLogger("ngramspec.told")
TELLER.propagate = False
TELLER.setLevel(logging.INFO)
TELLER.addHandler(_Stderr())


def tell(line: str) -> None:
    """Write a line, or several, to stderr and to the log.

    Raises:
        OSError: stderr cannot be written, outside of `tell_through`.
    """
    TELLER.info("%s", line)


@contextlib.contextmanager
def tell_through(handlers: Sequence[logging.Handler]) -> Iterator[None]:
    """Have others write the lines that are told in the block, those for stderr as well."""
    before = list(TELLER.handlers)
    _replace(before, handlers)
    try:
        yield
    finally:
        _replace(handlers, before)


def _replace(old: Sequence[logging.Handler], new: Sequence[logging.Handler]) -> None:
    for handler in old:
        TELLER.removeHandler(handler)
    for handler in new:
        TELLER.addHandler(handler)
