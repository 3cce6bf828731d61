"""Trees of the suffix drafter against the slow reference."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from helpers.backends import Native
from helpers.machines import SETTINGS
from native.suffix.test_machine import Machine
from reference.source import right_path


class TreeMachine(Machine):
    """Each proposal is a tree, but for some; any path of it may be accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = cycle([8, 1, 2, 64, 3, 0])

    def propose(self, slot: int, max_tokens: int) -> None:
        width = next(self.widths)
        if width == 0 or not self.is_active(slot):
            super().propose(slot, max_tokens)
            return
        tree = self.native.propose_tree(slot, max_tokens, width)
        assert self.reference.propose_tree(slot, max_tokens, width, tree) == tree
        claims = self.reference.confidence(slot)
        assert self.native.confidence(slot) == pytest.approx(claims, abs=0.002)

    def accept(self, slot: int, style: str, data: st.DataObject) -> None:
        if style == "other" or self.reference.slots[slot].parents is None:
            super().accept(slot, style, data)
        else:
            self.accept_path(slot, style, data)


# Each step grows a tree, which takes the reference long: a third of the examples is enough.
FEWER = settings(SETTINGS, max_examples=(SETTINGS.max_examples + 2) // 3)
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "defaults": (3, {}),
    "every token": (1, {"max_draft": 20, "min_probability": 0.0}),
    "alone": (5, {"share": False, "min_probability": 0.1}),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", CASES)
def test_native_and_reference_grow_the_same_trees_and_learn_the_same(name: str) -> None:
    class Case(TreeMachine):
        pass

    Case.max_token, Case.params = CASES[name]
    run_state_machine_as_test(Case, settings=FEWER)


def test_both_sides_bound_the_same_calls() -> None:
    machine = TreeMachine()
    assert machine.both("propose_tree", 0, 8) == "StateError"
    machine.both("begin", 0, [1, 2, 3, 1, 2])
    for arguments in [(0, -1), (0, 8, 0), (0, 8, -1), (2, 8), (-1, 8)]:
        assert machine.both("propose_tree", *arguments) == "InputError"
    tree = machine.native.propose_tree(0, 8)
    machine.reference.propose_tree(0, 8, 8, tree)
    tokens, parents = tree
    for i in range(len(tokens)):
        if (-1, tokens[i]) not in zip(parents, tokens, strict=True):  # no path without its parent
            assert machine.both("accept", 0, [tokens[i]], 1) == "InputError"
    assert machine.both("accept", 0, [9], 1) == "InputError"
    assert machine.both("shorten", 0, len(tokens) + 1) == "InputError"


@SETTINGS
@given(
    text=st.lists(st.integers(0, 2), max_size=60),
    most=st.integers(0, 40),
    width=st.integers(1, 6),
    shorter=st.integers(0, 40),
)
def test_a_tree_keeps_its_promises(text: list[int], most: int, width: int, shorter: int) -> None:
    drafter = Native().drafter("suffix")
    drafter.begin(0, text)
    chain, claims = drafter.propose(0, most), drafter.confidence(0)
    assert drafter.propose_tree(0, most, 1)[0] == chain
    assert drafter.confidence(0) == claims
    tokens, parents = drafter.propose_tree(0, most, width)
    assert len(tokens) <= most
    assert bool(tokens) == bool(chain)
    depths: list[int] = []
    for i, parent in enumerate(parents):
        assert -1 <= parent < i
        depths.append(0 if parent < 0 else depths[parent] + 1)
    assert all(depths.count(depth) <= width for depth in depths)
    assert len(set(zip(parents, tokens, strict=True))) == len(tokens)
    assert drafter.check() == ""
    few = drafter.propose_tree(0, min(shorter, most), width)
    assert few == (tokens[:shorter], parents[:shorter])
    assert drafter.propose(0, most) == chain
    # The likeliest first token is the draft's.
    assert right_path((tokens, parents), chain[:1]) == len(chain[:1])
