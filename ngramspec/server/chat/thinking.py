"""ThinkSplitter: tells reasoning, <think>...</think> at the start of an answer, from the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"
_START, _INSIDE, _BETWEEN, _AFTER = range(4)


class ThinkSplitter:
    """Takes an answer as it comes.

    Args:
        inside: The prompt has opened the reasoning already.
    """

    def __init__(self, inside: bool = False) -> None:
        self._state = _INSIDE if inside else _START
        self._held = ""  # not yet clear what it is
        self._begun = False  # some reasoning was returned

    @property
    def done(self) -> bool:
        """Tell whether all further text is answer."""
        return self._state == _AFTER and not self._held

    def feed(self, text: str, last: bool = False) -> list[tuple[bool, str]]:
        """Return (is reasoning, text) pieces that are certain now; the last call returns the rest.

        Whitespace around the reasoning is left out.
        """
        self._held += text
        pieces: list[tuple[bool, str]] = []
        if self._state == _START:
            self._start(last)
        if self._state == _INSIDE:
            self._inside(pieces, last)
        if self._state == _BETWEEN:
            self._held = self._held.lstrip()
            if self._held:
                self._state = _AFTER
        if self._state == _AFTER and self._held:
            pieces.append((False, self._held))
            self._held = ""
        return pieces

    def _start(self, last: bool) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held = text[len(OPEN) :]
            self._state = _INSIDE
        elif last or not OPEN.startswith(text):
            self._state = _AFTER

    def _inside(self, pieces: list[tuple[bool, str]], last: bool) -> None:
        if not self._begun:
            self._held = self._held.lstrip()
        at = self._held.find(CLOSE)
        if at >= 0:
            reasoning, self._held = self._held[:at], self._held[at + len(CLOSE) :]
            self._state = _BETWEEN
        else:
            kept = len(self._held) - (0 if last else open_end(self._held, CLOSE))
            reasoning, self._held = self._held[:kept], self._held[kept:]
        shown = reasoning.rstrip()
        if self._state == _INSIDE and not last:  # whitespace may still be its end
            self._held = reasoning[len(shown) :] + self._held
        if shown:
            self._begun = True
            pieces.append((True, shown))


def open_end(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
