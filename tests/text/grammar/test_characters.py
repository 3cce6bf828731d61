"""Classes of characters as graphs of bytes: every character by every byte."""

from __future__ import annotations

import pytest

from ngramspec.text.grammar.characters import DONE, LAST, Characters, utf8_sequences

EDGES = [
    0,
    0x7F,
    0x80,
    0x7FF,
    0x800,
    0xFFF,
    0xD7FF,
    0xE000,
    0xFFFF,
    0x10000,
    0x3FFFF,
    0x40000,
    LAST,
]
SOME = sorted(
    {
        *EDGES,
        *(e - 1 for e in EDGES if e),
        *(e + 1 for e in EDGES if e < LAST),
        *range(0, LAST, 997),
    }
)


def is_char(code: int) -> bool:
    return not 0xD800 <= code <= 0xDFFF


def matches(characters: Characters, node: int, text: bytes) -> bool:
    nodes = {node}
    for byte in text:
        edges = [edge for node in nodes if node != DONE for edge in characters.edges[node]]
        nodes = {after for low, high, after in edges if low <= byte <= high}
    return nodes == {DONE}


def holds(sequence: tuple[tuple[int, int], ...], text: bytes) -> bool:
    pairs = zip(text, sequence, strict=False)
    return len(text) == len(sequence) and all(low <= byte <= high for byte, (low, high) in pairs)


@pytest.mark.parametrize("first", EDGES)
@pytest.mark.parametrize("last", EDGES)
def test_the_sequences_of_a_range_write_its_characters_and_no_others(first: int, last: int) -> None:
    sequences = list(utf8_sequences(first, last)) if first <= last else []
    for code in filter(is_char, SOME):
        holding = [sequence for sequence in sequences if holds(sequence, chr(code).encode())]
        assert len(holding) == (first <= code <= last)


@pytest.mark.parametrize(
    "ranges",
    [[(97, 122)], [(0x80, 0x10FFFF)], [(0, 0), (0xD000, 0xE000)], [(9, 5)], [(5, 9), (7, 300)]],
)
@pytest.mark.parametrize("negated", [False, True])
def test_a_class_matches_its_characters_only(ranges: list[tuple[int, int]], negated: bool) -> None:
    characters = Characters()
    node = characters.one_of(ranges, negated)
    for code in filter(is_char, SOME):
        inside = any(first <= code <= last for first, last in ranges)
        assert matches(characters, node, chr(code).encode()) == (inside != negated)


def test_equal_classes_and_rests_are_shared() -> None:
    characters = Characters()
    node = characters.one_of([(0x80, LAST)])
    size = len(characters.edges)
    assert characters.one_of([(0x80, LAST)]) == node
    assert len(characters.edges) == size < 20
