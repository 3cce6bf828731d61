"""AnswerText: what is printed of the answer to a chat; its reasoning is told from the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ngramspec.cli.output import Piece

if TYPE_CHECKING:
    from ngramspec.text.chat.delta import Delta
    from ngramspec.text.chat.format import ChatFormat

OPEN, CLOSE = "<think>\n", "\n</think>\n\n"


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
            yield f"\n\n{OPEN}" if before else OPEN, False
        elif delta.kind == "content" and before == "reasoning":
            yield CLOSE, False
        yield delta.text, accepted
