"""Tokens as text in pieces, and pieces in colour."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Any

ACCEPTED_STYLE = "green"
OWN_STYLE = "bold"
OPEN, CLOSE = "«", "»"  # what stands for the colour where there is none

Piece = tuple[str, bool]  # text, and whether accepted draft tokens made it


class PieceDecoder:
    """Turns tokens into text as they come; a character of several tokens comes with the last."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Return the text that this token completes, maybe none."""
        return self._decoder.decode(bytes(self._llama.detokenize([token_id])))

    def finish(self) -> str:
        """Return what an unfinished character at the end becomes."""
        return self._decoder.decode(b"", True)


def decode_pieces(llama: Any, token_ids: Iterable[int], accepted: Iterable[bool]) -> list[Piece]:
    """Return the text in pieces, neighbours of the same kind joined."""
    decoder = PieceDecoder(llama)
    pieces: list[Piece] = []
    for token_id, is_accepted in zip(token_ids, accepted, strict=True):
        text = decoder.feed(int(token_id))
        if pieces and pieces[-1][1] == bool(is_accepted):
            text = pieces.pop()[0] + text
        pieces.append((text, bool(is_accepted)))
    pieces.append((decoder.finish(), False))
    return [piece for piece in pieces if piece[0]]


def plain_text(pieces: Iterable[Piece]) -> str:
    """Return the text alone."""
    return "".join(text for text, _ in pieces)


def marked_text(pieces: Iterable[Piece]) -> str:
    """Return the text with accepted draft tokens between marks, line by line."""
    return "".join(_mark_lines(text) if is_accepted else text for text, is_accepted in pieces)


def _mark_lines(text: str) -> str:
    return "\n".join(f"{OPEN}{line}{CLOSE}" if line else "" for line in text.split("\n"))


def styled(pieces: Iterable[Piece]) -> Iterator[tuple[str, str]]:
    """Yield text and rich style of each piece."""
    for text, is_accepted in pieces:
        yield text, ACCEPTED_STYLE if is_accepted else OWN_STYLE
