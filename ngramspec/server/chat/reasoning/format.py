"""ReasoningFormat: one way to write reasoning before an answer; ReasoningSplitter: splits them."""

from __future__ import annotations

from typing import ClassVar

from ngramspec.server.structured.gbnf import class_char, literal

_START, _INSIDE, _BETWEEN, _AFTER = range(4)


class ReasoningFormat:
    """Reasoning between two marks at the start of an answer. It has no state.

    open, close: The marks; the close mark has two characters or more.
    """

    open: ClassVar[str]
    close: ClassVar[str]

    def fits(self, template: str) -> bool:
        """Return whether the model with this chat template reasons in this format."""
        return self.open in template

    def begun(self, prompt: str) -> bool:
        """Return whether a prompt ends with the open mark."""
        return prompt.rstrip().endswith(self.open)

    def splitter(self, begun: bool) -> ReasoningSplitter:
        """Return a splitter for one answer."""
        return ReasoningSplitter(self.open, self.close, begun)

    def rule(self) -> str:
        """Return the grammar of reasoning after the open mark, up to the answer."""
        first, second = map(class_char, self.close[:2])
        inside = f"([^{first}] | {literal(self.close[0])} [^{second}])*"
        return f"{inside} {literal(self.close)} [ \\n]{{0,4}}"


class ReasoningSplitter:
    """Splits a streamed answer into reasoning and the answer proper.

    Args:
        open, close: The marks around the reasoning.
        begun: The prompt ends with the open mark.
    """

    def __init__(self, open: str, close: str, begun: bool = False) -> None:
        self._open, self._close = open, close
        self._state = _INSIDE if begun else _START
        self._held = ""  # text that is not yet classified
        self._begun = False  # some reasoning was returned

    @property
    def done(self) -> bool:
        """Return whether all further text is answer."""
        return self._state == _AFTER and not self._held

    def feed(self, text: str, last: bool = False) -> list[tuple[bool, str]]:
        """Return (is reasoning, text) pieces that are certain by now; with `last` all the rest.

        Whitespace around the reasoning is dropped.
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
        if text.startswith(self._open):
            self._held = text[len(self._open) :]
            self._state = _INSIDE
        elif last or not self._open.startswith(text):
            self._state = _AFTER

    def _inside(self, pieces: list[tuple[bool, str]], last: bool) -> None:
        if not self._begun:
            self._held = self._held.lstrip()
        at = self._held.find(self._close)
        if at >= 0:
            reasoning, self._held = self._held[:at], self._held[at + len(self._close) :]
            self._state = _BETWEEN
        else:
            kept = len(self._held) - (0 if last else open_end(self._held, self._close))
            reasoning, self._held = self._held[:kept], self._held[kept:]
        shown = reasoning.rstrip()
        if self._state == _INSIDE and not last:  # whitespace may be the end of the reasoning
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
