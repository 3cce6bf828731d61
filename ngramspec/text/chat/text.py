"""Text that comes in pieces, and what reads it: coroutines that wait for more where they must."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Read = Generator[None, None, T]  # yields to wait for more text
Sink = Callable[[str], object]
_VISIBLE = re.compile(r"\S")


class Stops:
    """Marks that end a text, of which the longest is found where several begin."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.marks = tuple(sorted(set(marks), key=len, reverse=True))
        self._find = re.compile("|".join(map(re.escape, self.marks)) or r"(?!)")
        self._longest = len(self.marks[0]) if self.marks else 0
        self._firsts = {mark[0] for mark in self.marks if mark}
        self._beginnings = {mark[:size] for mark in self.marks for size in range(1, len(mark))}

    def find(self, text: str, start: int, ended: bool) -> tuple[int, str] | None:
        """Return where the first mark begins, and the mark; None if that is not certain yet."""
        match = self._find.search(text, start)
        if match is None:
            return None
        near = not ended and match.start() > len(text) - self._longest
        if near and match.start() >= len(text) - self.open_end(text, start):
            return None  # it may be a part of a longer mark
        return match.start(), match[0]

    def open_end(self, text: str, start: int) -> int:
        """Return how many characters at the end of a text may be the beginning of a mark."""
        most = min(self._longest - 1, len(text) - start)
        if self._firsts.isdisjoint(text[len(text) - most :]):
            return 0
        for size in range(most, 0, -1):
            if text[len(text) - size :] in self._beginnings:
                return size
        return 0


class Text:
    """The part of an answer that was not read yet.

    ended: Nothing more will come.
    num_given_back: Characters that are read again, in all.
    """

    def __init__(self) -> None:
        self.ended = False
        self.num_given_back = 0
        self._held = ""
        self._before = 0  # characters before those that are held
        self._at = 0
        self._pieces: list[str] | None = None  # what was read since keep(), up to the last feed()
        self._kept_at = 0  # where the rest of that begins in what is held

    @property
    def position(self) -> int:
        return self._before + self._at

    def feed(self, piece: str, last: bool = False) -> None:
        if self._pieces is not None:
            self._pieces.append(self._held[self._kept_at : self._at])
        self._before += self._at
        self._held = self._held[self._at :] + piece
        self._at = self._kept_at = 0
        self.ended = last

    def keep(self) -> None:
        """Keep what is read from now on, for give_back."""
        self._pieces, self._kept_at = [], self._at

    def release(self) -> None:
        """Keep no longer what is read."""
        self._pieces = None

    def give_back(self) -> None:
        """Return to where keep was called."""
        assert self._pieces is not None
        before = "".join(self._pieces)
        self.num_given_back += len(before) + self._at - self._kept_at
        if before:
            self._before += self._kept_at - len(before)
            self._held, self._kept_at = before + self._held[self._kept_at :], 0
        self._at, self._pieces = self._kept_at, None

    def skip(self, count: int) -> None:
        self._at += count

    def drop(self) -> None:
        """Pass over all that is there."""
        self._at = len(self._held)

    def ahead(self, count: int) -> Read[str]:
        """Return the next characters without reading them, fewer only at the end."""
        while len(self._held) - self._at < count and not self.ended:
            yield
        return self._held[self._at : self._at + count]

    def starts(self, mark: str) -> Read[bool]:
        """Return whether a mark comes next; wait no longer than it may."""
        while True:
            have = self._held[self._at : self._at + len(mark)]
            if have == mark or self.ended or not mark.startswith(have):
                return have == mark
            yield

    def passes(self, mark: str) -> Read[bool]:
        """Read a mark if it comes next, and return whether it did."""
        comes = yield from self.starts(mark)
        if comes:
            self._at += len(mark)
        return comes

    def is_cut(self, mark: str) -> bool:
        """Return whether the text has ended within a mark, or before it."""
        have = self._held[self._at : self._at + len(mark)]
        return self.ended and have != mark and mark.startswith(have)

    def space(self) -> Read[None]:
        while True:
            match = _VISIBLE.search(self._held, self._at)
            self._at = match.start() if match else len(self._held)
            if match or self.ended:
                return
            yield

    def match(self, pattern: re.Pattern[str], most: int) -> Read[str]:
        """Read the characters that a pattern matches, at most some of them.

        The pattern must match more text wherever it matches less.
        """
        while True:
            match = pattern.match(self._held, self._at, self._at + most)
            size = match.end() - self._at if match else 0
            if size >= most or self._at + size < len(self._held) or self.ended:
                self._at += size
                return self._held[self._at - size : self._at]
            yield

    def until(self, stops: Stops, sink: Sink) -> Read[str]:
        """Pass text to a sink up to a mark, which is read and returned; "" at the end."""
        while True:
            stop = stops.find(self._held, self._at, self.ended)
            if stop is not None:
                at, mark = stop
                self._pass(sink, at)
                self._at += len(mark)
                return mark
            held = 0 if self.ended else stops.open_end(self._held, self._at)
            self._pass(sink, len(self._held) - held)
            if self.ended:
                return ""
            yield

    def search(self, pattern: re.Pattern[str], sink: Sink) -> Read[str]:
        """Pass text to a sink up to the character that a pattern finds, which is not read."""
        while True:
            match = pattern.search(self._held, self._at)
            self._pass(sink, match.start() if match else len(self._held))
            if match or self.ended:
                return match[0] if match else ""
            yield

    def _pass(self, sink: Sink, end: int) -> None:
        if end > self._at:
            sink(self._held[self._at : end])
            self._at = end


def ignored(_piece: str) -> None:
    """Take a piece that is not needed: a sink."""
