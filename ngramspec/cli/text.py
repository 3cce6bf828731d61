"""Tokens as text in pieces, and pieces in colour."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator

ACCEPTED_STYLE = "green"
OWN_STYLE = "bold"
OPEN, CLOSE = "«", "»"  # what stands for the colour where there is none

Piece = tuple[str, bool]  # text, and whether accepted draft tokens made it


def decode_pieces(
    piece: Callable[[int], bytes], token_ids: Iterable[int], accepted: Iterable[bool]
) -> list[Piece]:
    """Return the text in pieces, neighbours of the same kind joined.

    Args:
        piece: Returns the bytes of a token, as LlamaModel.piece.
        token_ids: The text; a character of several tokens comes with the last of them.
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
    return [made for made in pieces if made[0]]


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
