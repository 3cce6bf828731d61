"""Long texts cut into pieces that a tokenizer takes at a time."""

from __future__ import annotations

from collections.abc import Iterator

from ngramspec.errors import InputError

_MARKS = ("\n\n", "\n")  # a cut comes after one of these, otherwise before a space


def pieces(text: str, limit: int) -> Iterator[str]:
    """Cut a text at blank lines if possible, otherwise at line ends, spaces or anywhere.

    A cut is searched for in the second half of what fits, so that no piece is needlessly short.

    Args:
        text: Any text.
        limit: Most characters of a piece, at least 1.

    Returns:
        Iterator of str: Joined, they are the text; none for an empty text.

    Raises:
        InputError: The limit is not positive.

    Cost: O(characters), one copy.
    """
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    return _pieces(text, limit)


def _pieces(text: str, limit: int) -> Iterator[str]:
    start = 0
    while len(text) - start > limit:
        stop = _cut(text, start, start + limit)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int, stop: int) -> int:
    """Return where the piece that begins at `start` ends, at most at `stop`."""
    middle = start + (stop - start) // 2
    for mark in _MARKS:
        at = text.rfind(mark, middle, stop)
        if at >= 0:
            return at + len(mark)
    at = text.rfind(" ", middle + 1, stop)
    return at if at > start else stop
