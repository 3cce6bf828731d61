"""CallParser: finds tool calls in a streamed answer, in any of the formats."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ngramspec.server.chat.calls import CALL_FORMATS
from ngramspec.server.chat.calls.format import CallFormat, CallReader, Mark
from ngramspec.server.chat.delta import Delta
from ngramspec.server.chat.reasoning.format import open_end

CONTENT, CALL, AFTER = range(3)  # the parser is in text, in a call, or after a call
Opening = tuple[CallFormat, int]  # a format whose mark was found, and where its call would begin


class CallParser:
    """Splits content from calls. Text that only looked like a call is content.

    All formats are tried, because models do not always write their own.

    Args:
        names: Names of the tools.
        limit: Largest number of calls; later calls are dropped.
        preferred: The format to try first if several have the same mark.
    """

    def __init__(
        self,
        names: Collection[str],
        limit: int | None = None,
        preferred: CallFormat | None = None,
    ) -> None:
        self.num_calls = 0
        self._names = names
        self._limit = limit
        formats = sorted(CALL_FORMATS, key=lambda known: known is not preferred)
        self._marks = [(known, mark) for known in formats for mark in known.marks]
        self._state = CONTENT
        self._held = ""  # text that is not yet classified
        self._begun = False  # something was returned: marks with `first` are content from now on
        # Of the current or last call:
        self._format = formats[0]
        self._others: Sequence[Opening] = ()  # the other formats that it may be of
        self._reader: CallReader | None = None
        self._lead = ""  # its mark, with whitespace before it
        self._taken = ""  # its text after the mark
        self._announced = False  # its name was returned

    def feed(self, text: str, last: bool = False) -> list[Delta]:
        """Return the pieces that are certain by now; with `last` all the rest."""
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        if last:
            self._flush(deltas)
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """Parse the next part; return False if more text is needed."""
        if self._state == CALL:
            return self._call(deltas)
        if self._limit is not None and self.num_calls >= self._limit:
            self._held = ""
            return False
        return self._after() if self._state == AFTER else self._content(deltas)

    def _content(self, deltas: list[Delta]) -> bool:
        """Return text up to the next call."""
        found = self._find()
        if found:
            at, openings = found
            shown = self._held[:at].rstrip()  # whitespace before a call is dropped
            self._show(deltas, len(shown))
            self._open([(known, begin - len(shown)) for known, begin in openings])
            return True
        partial = max((open_end(self._held, mark.text) for _, mark in self._sought()), default=0)
        self._show(deltas, len(self._held[: len(self._held) - partial].rstrip()))
        return False

    def _sought(self) -> list[tuple[CallFormat, Mark]]:
        return [pair for pair in self._marks if not (self._begun and pair[1].first)]

    def _find(self) -> tuple[int, list[Opening]] | None:
        """Return where the first mark begins, and the formats that it may be of."""
        held, lead = self._held, len(self._held) - len(self._held.lstrip())
        found: list[tuple[int, CallFormat, int]] = []
        for known, mark in self._sought():
            at = lead if mark.first else held.find(mark.text)
            if at >= 0 and held.startswith(mark.text, at):
                found.append((at, known, at + (0 if mark.inside else len(mark.text))))
        if not found:
            return None
        first = min(at for at, _, _ in found)
        return first, [(known, begin) for at, known, begin in found if at == first]

    def _open(self, openings: Sequence[Opening]) -> None:
        """Begin a call; the first opening is tried first."""
        (self._format, begin), *self._others = openings
        self._state, self._reader, self._announced = CALL, None, False
        self._lead, self._held, self._taken = self._held[:begin], self._held[begin:], ""

    def _take(self, count: int) -> None:
        """Take held characters as a part of the call."""
        self._taken += self._held[:count]
        self._held = self._held[count:]

    def _call(self, deltas: list[Delta]) -> bool:
        """Read more of a call."""
        if self._reader is None:
            begun = self._format.begin(self._held, self._names)
            if begun is None:
                return False
            count, self._reader = begun
            self._take(count)
        reader = self._reader
        piece = reader.feed(self._held)
        self._take(len(self._held))
        if reader.bad:
            self._give_up(deltas)
            return True
        if reader.name is not None and not self._announced:
            deltas.append(Delta("call", reader.name, self.num_calls, self._format.call_id()))
            self._announced = self._begun = True
        if piece:
            deltas.append(Delta("arguments", piece, self.num_calls))
        if reader.done:
            self.num_calls += 1
            self._held, self._state = reader.rest, AFTER
        return reader.done

    def _after(self) -> bool:
        """Skip the text between two calls, or after the last one."""
        follows = self._format.after(self._held)
        if follows is None:
            return False
        count, another = follows
        if another:
            self._open([(self._format, count)])
        else:
            self._held, self._state = self._held[count:], CONTENT
        return True

    def _flush(self, deltas: list[Delta]) -> None:
        """Return the rest at the end: an unfinished call without a name is content."""
        while self._state == CALL and not self._announced:
            self._give_up(deltas)
            while self._step(deltas):
                pass
        rest, self._held = self._held, ""
        if self._state == CONTENT and (rest.strip() or not self.num_calls):
            self._emit(deltas, rest)

    def _give_up(self, deltas: list[Delta]) -> None:
        """Try another format, or return the mark as content and parse what follows again."""
        self._held = self._taken + self._held
        if self._others:
            self._held = self._lead + self._held
            self._open(self._others)
        else:
            self._state, self._begun = CONTENT, True
            self._emit(deltas, self._lead)

    def _show(self, deltas: list[Delta], count: int) -> None:
        """Return held characters as content."""
        shown, self._held = self._held[:count], self._held[count:]
        self._emit(deltas, shown)

    def _emit(self, deltas: list[Delta], text: str) -> None:
        if text:
            self._begun = True
            deltas.append(Delta("content", text))
