"""TextStream: the slow, obvious twin of Transcript, by the incremental decoder of codecs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

Span = tuple[str, bool]  # text, and whether accepted draft tokens made it


class TextStream:
    """Turns tokens into text as they come.

    Text that may be the beginning of a stop text, and bytes of an unfinished character, are held
    back until it is clear what they are.

    Args:
        stops: Texts that end the answer; none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held: list[Span] = []
        self._length = 0  # characters in _held
        self.stop_text = ""  # the stop text that was found

    def feed(self, piece: bytes, accepted: bool) -> bool:
        """Take a token's bytes; True when a stop text is complete: nothing more may be fed."""
        text = self._decoder.decode(piece)
        if not text:
            return False
        self._held.append((text, accepted))
        self._length += len(text)
        return bool(self._stops) and self._find_stop()

    def take(self, last: bool = False) -> tuple[Span, ...]:
        """Return the text that is certain now, in pieces; all of it when it is the last call."""
        if last:
            rest = self._decoder.decode(b"", True)
            if rest and not self.stop_text:
                self._held.append((rest, False))
                self._length += len(rest)
        held = 0 if last or not self._stops else self._open_length()
        if held:
            return self._release(self._length - held)
        spans, self._held, self._length = tuple(self._held), [], 0
        return spans

    def _find_stop(self) -> bool:
        """Cut the held text before the earliest stop text in it."""
        text = "".join(piece for piece, _ in self._held)
        places = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not places:
            return False
        at, self.stop_text = min(places, key=lambda pair: pair[0])
        spans = self._release(at)
        self._held, self._length = list(spans), at
        return True

    def _open_length(self) -> int:
        """Return the length of the longest end of the held text that begins a stop text.

        Bytes of an unfinished character after it belong to the beginning, too.
        """
        text = "".join(piece for piece, _ in self._held)
        unfinished, _ = self._decoder.getstate()
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:].encode() + unfinished
            if any(stop.encode().startswith(end) for stop in self._stops):
                return length
        return 0

    def _release(self, length: int) -> tuple[Span, ...]:
        """Return the first `length` characters and keep the rest."""
        spans: list[Span] = []
        held: list[Span] = []
        for text, accepted in self._held:
            head, tail = text[: max(0, length)], text[max(0, length) :]
            length -= len(text)
            if head:
                spans.append((head, accepted))
            if tail:
                held.append((tail, accepted))
        self._held = held
        self._length = sum(len(text) for text, _ in held)
        return tuple(spans)
