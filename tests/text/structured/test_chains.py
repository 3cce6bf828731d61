"""How deep names that refer to one another can lead."""

from __future__ import annotations

import random

from ngramspec.text.structured.chains import longest_chain

Nodes = dict[str, tuple[int, list[str]]]


def by_trying(nodes: Nodes) -> int:
    """Return the most that a way without repetitions weighs, by trying all of them."""

    def from_here(name: str, passed: frozenset[str]) -> int:
        weight, others = nodes[name]
        following = [one for one in others if one in nodes and one not in passed]
        return weight + max((from_here(one, passed | {one}) for one in following), default=0)

    return max((from_here(name, frozenset([name])) for name in nodes), default=0)


def test_the_longest_way_is_what_trying_all_of_them_finds() -> None:
    rng = random.Random(1)
    for case in range(2000):
        size = rng.randint(0, 7)
        least = (lambda i: i + 1) if case % 2 else (lambda i: 0)  # without ways back, and with them
        nodes = {
            str(i): (rng.randint(0, 3), [str(rng.randint(least(i), size)) for _ in range(3)])
            for i in range(size)
        }
        assert longest_chain(nodes) >= by_trying(nodes)
        if case % 2:
            assert longest_chain(nodes) == by_trying(nodes)


def test_a_chain_may_be_long() -> None:
    assert longest_chain({str(i): (1, [str(i + 1)]) for i in range(20_000)}) == 20_000
    assert longest_chain({"a": (1, ["b"]), "b": (1, ["a"]), "c": (3, ["nowhere"])}) == 3
