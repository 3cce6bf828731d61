"""A static index for the suffix drafter: texts that never change, found by their contexts."""

from __future__ import annotations

from collections import Counter, defaultdict

from .suffix_pool import SAME, WORDS, Lines, context_hashes

RARE = 2  # occurrences that are found without a longer context
FILL = 12  # words of a line that are expected to be in use
Seat = tuple[int, int, int]  # rank, hash, position


class SuffixIndex:
    """Texts one behind the other with -1 behind each, and lines with positions by context."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.tokens = [token for text in texts for token in [*text, -1]]
        self.bits = max(10, (2 * len(self.tokens) - 1).bit_length())
        occurrences = self._occurrences(texts)
        seats = [
            seat for value, places in occurrences.items() for seat in self._seats(value, places)
        ]
        self.lines = Lines(0)
        self.lines.num_lines = len(seats) // FILL + 1
        by_line = defaultdict(list)
        for seat in seats:
            by_line[(seat[1] >> 32) * self.lines.num_lines >> 32].append(seat)
        for line, those in by_line.items():
            first = sorted(those)[:WORDS]
            self.lines.lines[line] = [(value >> 25 & 127, at) for _, value, at in first]

    def next(self, position: int) -> int:
        """The position after one, -1 at the end of a text."""
        return position + 1 if self.tokens[position + 1] >= 0 else -1

    def _occurrences(self, texts: list[list[int]]) -> dict[int, list[int]]:
        """Where each context stands that tells more than the next shorter one, by hash."""
        contexts = [
            (at, context_hashes(text[: i + 1], i))
            for start, text in self._starts(texts)
            for i, at in enumerate(range(start, start + len(text)))
        ]
        seen = Counter(self._cell(value) for _, values in contexts for value in values)
        places = defaultdict(list)
        for at, values in contexts:
            for k, value in enumerate(values):
                if any(seen[self._cell(shorter)] <= RARE for shorter in values[:k]):
                    break
                places[value].append(at)
        return places

    def _starts(self, texts: list[list[int]]) -> list[tuple[int, list[int]]]:
        starts, at = [], 0
        for text in texts:
            starts.append((at, text))
            at += len(text) + 1
        return starts

    def _cell(self, value: int) -> int:
        return value >> 64 - self.bits

    def _seats(self, value: int, places: list[int]) -> list[Seat]:
        """Up to SAME of a context's occurrences: each follower's share, its latest ones."""
        left = defaultdict(list)
        for at in places:
            left[self.tokens[at]].append(at)
        count = {token: len(those) for token, those in left.items()}
        # The most frequent SAME followers, the smaller token on ties, can get a seat.
        best = sorted(count, key=lambda token: (-count[token], token))[:SAME]
        taken: Counter[int] = Counter()
        seats = []
        for rank in range(min(SAME, len(places))):
            # The largest quotient of count by seats + 1; the first on ties.
            token = max(
                (token for token in best if left[token]),
                key=lambda token: count[token] / (taken[token] + 1),
            )
            taken[token] += 1
            seats.append((rank, value, left[token].pop()))
        return seats
