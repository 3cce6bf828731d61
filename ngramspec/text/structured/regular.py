"""Regular texts as trees: what a pattern or a format allows, within a length, and GBNF for it.

The characters are those of the text itself; a Spelling tells how they are written. Inside a JSON
string, a character that JSON writes with a backslash comes in that form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ngramspec.text.structured.gbnf import NEVER, Rules, class_char, json_text, literal

Range = tuple[int, int]  # first and last code point
# What a JSON string can hold plainly or as one of ESCAPED.
WRITABLE: tuple[Range, ...] = ((9, 10), (13, 13), (32, 126), (128, 0xD7FF), (0xE000, 0x10FFFF))
ESCAPED = '"\\\n\t\r'  # inside a JSON string
_PLAIN: tuple[Range, ...] = ((32, 33), (35, 91), (93, 126), (128, 0xD7FF), (0xE000, 0x10FFFF))


@dataclass(frozen=True)
class Chars:
    """One character of some ranges, which are in order and do not overlap."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Row:
    """Parts one after the other."""

    parts: tuple[Regular, ...]


@dataclass(frozen=True)
class Choice:
    """One of several parts."""

    parts: tuple[Regular, ...]


@dataclass(frozen=True)
class Repeat:
    """A part between `low` and `high` times; None = any number of times."""

    part: Regular
    low: int
    high: int | None


Regular = Chars | Row | Choice | Repeat
EMPTY = Row(())
NOTHING = Choice(())  # no text at all
ANY = Chars(WRITABLE)
EMPTY_TEXT = '""'  # in GBNF
ANY_TEXT = Repeat(ANY, 0, None)


def meet(one: Sequence[Range], other: Sequence[Range]) -> tuple[Range, ...]:
    """Return the code points that are in both; the ranges of `other` are in order."""
    both = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((a, b) for a, b in both if a <= b))


def without(ranges: Iterable[Range], holes: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges in order and apart, without the holes. Cost: that of sorting them."""
    left, cut = _joined(ranges), _joined(holes)
    rest, at = [], 0
    for low, high in left:
        while at < len(cut) and cut[at][0] <= high:
            if low < cut[at][0]:
                rest.append((low, cut[at][0] - 1))
            low = max(low, cut[at][1] + 1)
            if cut[at][1] > high:
                break
            at += 1
        if low <= high:
            rest.append((low, high))
    return tuple(rest)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order and apart."""
    joined: list[Range] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        elif low <= high:
            joined.append((low, high))
    return joined


def may_hold(tree: Regular, text: str) -> bool:
    """Tell whether a tree has all characters of a text; if not, none of its texts holds it."""
    left, todo = set(map(ord, text)), [tree]
    while todo and left:
        part = todo.pop()
        if isinstance(part, Chars):
            left = {code for code in left if not any(a <= code <= b for a, b in part.ranges)}
        elif isinstance(part, Repeat):
            todo.append(part.part)
        else:
            todo += part.parts
    return not left


def lengths(tree: Regular) -> tuple[int, float]:
    """Return how many characters the texts of a tree have: least and most, which may be inf."""
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, Repeat):
        low, high = lengths(tree.part)
        most = math.inf if tree.high is None else tree.high
        return low * tree.low, high * most if high and most else 0
    spans = [lengths(part) for part in tree.parts]
    if isinstance(tree, Row):
        return sum(low for low, _ in spans), sum(high for _, high in spans)
    return min(low for low, _ in spans), max(high for _, high in spans)


def fitted(tree: Regular, low: int, high: int | None) -> Regular | None:
    """Return the tree for those of its texts that have `low` to `high` characters.

    None: that takes more than another number of repetitions. The tree can be kept if all of its
    texts have such a length, or if one part of it has another length each time, which is a
    repetition of something with a fixed length. NOTHING if no text has such a length.
    """
    shortest, longest = lengths(tree)
    most = math.inf if high is None else high
    if shortest >= low and longest <= most:
        return tree
    if longest < low or shortest > most:
        return Choice(())
    if isinstance(tree, Row):
        loose = [at for at, part in enumerate(tree.parts) if not _has_one_length(part)]
        if len(loose) != 1:
            return None
        at = loose[0]
        rest = sum(lengths(part)[0] for part in tree.parts if part is not tree.parts[at])
        inner = fitted(tree.parts[at], max(0, low - rest), None if high is None else high - rest)
        if inner is None or inner == NOTHING:
            return inner
        return Row((*tree.parts[:at], inner, *tree.parts[at + 1 :]))
    if isinstance(tree, Repeat) and _has_one_length(tree.part):
        size = lengths(tree.part)[0]
        least = max(tree.low, -(-low // size))
        highs = [] if tree.high is None else [tree.high]
        highs += [] if high is None else [high // size]
        fits = not highs or least <= min(highs)
        return Repeat(tree.part, least, min(highs, default=None)) if fits else NOTHING
    return None


def _has_one_length(tree: Regular) -> bool:
    low, high = lengths(tree)
    return low == high


@dataclass(frozen=True)
class Spelling:
    """How texts are written: inside a JSON string, or as they are."""

    json: bool

    def literal(self, text: str) -> str:
        """Return GBNF for a text, "" for the empty text."""
        return literal(json_text(text)[1:-1] if self.json else text) if text else ""

    def chars(self, ranges: Sequence[Range]) -> str:
        """Return GBNF for one of some characters."""
        shown = meet(ranges, _PLAIN if self.json else WRITABLE)
        escaped = ESCAPED if self.json else ""
        escaped = "".join(char for char in escaped if any(a <= ord(char) <= b for a, b in ranges))
        if is_one(shown) and not escaped:
            return self.literal(chr(shown[0][0]))
        parts = [f"[{''.join(map(_span, shown))}]"] if shown else []
        parts += map(self.literal, escaped)
        return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


IN_JSON = Spelling(json=True)
AS_IS = Spelling(json=False)


def gbnf(tree: Regular, rules: Rules, name: str, spelling: Spelling = IN_JSON) -> str:
    """Return GBNF for a tree, "" for the empty text.

    Raises:
        GrammarError: The grammar becomes too large.
    """
    if isinstance(tree, Chars):
        return rules.shared(spelling.chars(tree.ranges))
    if isinstance(tree, Choice):
        parts = [gbnf(part, rules, name, spelling) or EMPTY_TEXT for part in tree.parts]
        return f"({' | '.join(parts)})" if parts else NEVER
    if isinstance(tree, Repeat):
        item = gbnf(tree.part, rules, name, spelling)
        if not item:
            return ""  # an empty text, however often it is repeated
        if not isinstance(tree.part, Chars):
            item = rules.add(f"{name}-part", item)
        return rules.repeated(item, tree.low, tree.high)
    parts = []
    plain = ""  # characters that become one literal
    for part in tree.parts:
        if isinstance(part, Chars) and is_one(part.ranges):
            plain += chr(part.ranges[0][0])
            continue
        parts += [spelling.literal(plain), gbnf(part, rules, name, spelling)]
        plain = ""
    return " ".join(filter(None, (*parts, spelling.literal(plain))))


def is_one(ranges: Sequence[Range]) -> bool:
    """Tell whether ranges hold a single character."""
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _span(span: Range) -> str:
    low, high = (class_char(chr(code)) for code in span)
    return low if low == high else f"{low}-{high}"
