"""Characters: from classes of characters to the bytes that write them in UTF-8.

A class becomes a node of a graph of bytes. An edge says which bytes may come, and the node where
the character goes on. Nodes of equal rests are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ngramspec.errors import InputError

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # not characters
DONE = -1  # in place of a node: the character is complete
_LAST_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF)
Range = tuple[int, int]  # first and last, of code points or of bytes


MAX_EDGES = 1 << 17  # of all classes of a grammar; [^a] has some ten


class Characters:
    """The graph of bytes for all classes of one grammar.

    edges: Per node: lowest byte, highest byte, next node or DONE.
    """

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self._classes: dict[tuple[bool, tuple[Range, ...]], int] = {}
        self._num_edges = 0
        self._rests: dict[tuple[Range, ...], int] = {}

    def one_of(self, ranges: Sequence[Range], negated: bool = False) -> int:
        """Return the node of a class.

        Args:
            ranges: Code points, first and last. A range that ends before it begins holds nothing.
            negated: Whether the class holds all others instead.

        Raises:
            InputError: The classes of the grammar are too many.
        """
        key = negated, tuple(ranges)
        if key not in self._classes:
            node = self._classes[key] = self._new_node()
            for first, last in _others(_joined(ranges)) if negated else _joined(ranges):
                for sequence in utf8_sequences(first, last):
                    self.edges[node].append((*sequence[0], self._rest(sequence[1:])))
                    self._count()
        return self._classes[key]

    def _rest(self, sequence: tuple[Range, ...]) -> int:
        """Return the node of the bytes that follow."""
        if not sequence:
            return DONE
        if sequence not in self._rests:
            node = self._rests[sequence] = self._new_node()
            self.edges[node].append((*sequence[0], self._rest(sequence[1:])))
            self._count()
        return self._rests[sequence]

    def _count(self) -> None:
        self._num_edges += 1
        if self._num_edges > MAX_EDGES:
            raise InputError("the grammar has too many different classes of characters")

    def _new_node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1


def utf8_sequences(first: int, last: int) -> Iterator[tuple[Range, ...]]:
    """Yield ranges of bytes, one per byte, that together write the code points first..last."""
    for skipped in (SURROGATES, *((end, end) for end in _LAST_OF_LENGTH)):
        low, high = skipped
        if skipped == SURROGATES and first <= high and last >= low:
            yield from utf8_sequences(first, low - 1) if first < low else ()
            yield from utf8_sequences(high + 1, last) if last > high else ()
            return
        if skipped != SURROGATES and first <= high < last:
            yield from utf8_sequences(first, high)
            yield from utf8_sequences(high + 1, last)
            return
    for bits in (6, 12, 18):
        low = (1 << bits) - 1  # the bits of the last bytes
        if last <= 0x7F or first & ~low == last & ~low:
            continue
        if first & low:
            yield from utf8_sequences(first, first | low)
            yield from utf8_sequences((first | low) + 1, last)
            return
        if last & low != low:
            yield from utf8_sequences(first, (last & ~low) - 1)
            yield from utf8_sequences(last & ~low, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield ranges in order, without overlaps."""
    start, end = -1, -2  # nothing yet
    for first, last in sorted((max(0, first), min(last, LAST)) for first, last in ranges):
        if first > last:
            continue
        if first > end + 1 or end < 0:
            if end >= 0:
                yield start, end
            start, end = first, last
        end = max(end, last)
    if end >= 0:
        yield start, end


def _others(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield what lies between ranges in order."""
    following = 0
    for first, last in ranges:
        if first > following:
            yield following, first - 1
        following = last + 1
    if following <= LAST:
        yield following, LAST
