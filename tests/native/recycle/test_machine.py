"""The recycle drafter against its slow reference: two slots on one small pool."""

from __future__ import annotations

from itertools import cycle
from math import log
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from helpers.backends import Backend
from helpers.machines import SETTINGS, SLOTS, SideBySide
from reference.source import widest

# In 65,535ths, and such that their logarithms in 32 bits lead back to them.
LIKELY = st.lists(st.integers(1, 30_000), min_size=8, max_size=8).map(
    lambda numbers: sorted(numbers, reverse=True)
)


@st.composite
def rows(draw: st.DrawFn, max_token: int) -> tuple[list[int], list[float]]:
    """Eight tokens and their log-probabilities, likeliest first."""
    tokens = draw(st.permutations(range(max_token + 8)))[:8]
    return tokens, [log(p / 65535) for p in draw(LIKELY)]


class Machine(SideBySide):
    """The pools must agree too; proposals are chains and trees in turn."""

    spec = "recycle"
    params: dict[str, Any] = {}  # noqa: RUF012
    capacity = 64

    def __init__(self) -> None:
        self.pools: dict[str, Any] = {}
        self.widths = cycle([0, 8, 0, 1, 2, 64])
        super().__init__()

    def options(self, backend: Backend) -> dict[str, Any]:
        pool = self.pools[backend.name] = backend.successor_pool(self.capacity)
        return {"pool": pool, **self.params}

    def propose(self, slot: int, max_tokens: int) -> None:
        width = next(self.widths)
        if width == 0 or not self.is_active(slot):
            super().propose(slot, max_tokens)
        else:
            _, parents = self.both("propose_tree", slot, max_tokens, width)
            assert widest(parents) <= width
        if self.is_active(slot):
            assert self.native.confidence(slot) == self.reference.confidence(slot)

    def accept(self, slot: int, style: str, data: st.DataObject) -> None:
        """Show some rows first, as an engine does."""
        if self.is_active(slot) and self.reference.history(slot):
            draft = self.reference.slots[slot].draft
            self.show(slot, data, data.draw(st.integers(0, min(4, len(draft) + 1))), None)
        if style == "other" or self.reference.slots[slot].parents is None:
            super().accept(slot, style, data)
        else:
            self.accept_path(slot, style, data)

    def show(self, slot: int, data: st.DataObject, n: int, first: int | None) -> Any:
        shown = [data.draw(rows(self.max_token)) for _ in range(n)]
        ids, logs = [row for row, _ in shown], [row for _, row in shown]
        return self.both("observe_top", slot, ids, logs, first)

    @rule(slot=SLOTS, data=st.data())
    def show_a_prompt(self, slot: int, data: st.DataObject) -> None:
        length = self.reference.length(slot)
        first = data.draw(st.integers(-1, length + 1))
        n = data.draw(st.integers(0, min(3, max(0, length - first) + 1)))
        self.show(slot, data, n, first)

    @rule()
    def clear(self) -> None:
        for pool in self.pools.values():
            pool.clear()

    @invariant()
    def pools_agree(self) -> None:
        native, reference = self.pools["native"], self.pools["reference"]
        assert native.check() == ""
        for name in ("num_entries", "num_observed", "num_evicted"):
            assert getattr(native, name) == getattr(reference, name), name
        for context in ([token] for token in range(self.max_token + 1)):
            tokens, p = native.successors(context)
            expected = reference.find(tuple(context))
            assert (
                list(zip(tokens.tolist(), (p * 65535).round().astype(int).tolist(), strict=True))
                == expected
            )


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "defaults": (3, {}),
    "every token": (6, {"max_draft": 20, "min_probability": 0.0}),
    "one token as key": (5, {"key_tokens": 1}),
    "full sets": (200, {"min_probability": 0.3}),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", CASES)
def test_native_and_reference_agree_on_every_call(name: str) -> None:
    class Case(Machine):
        pass

    Case.max_token, Case.params = CASES[name]
    run_state_machine_as_test(Case, settings=SETTINGS)


def test_both_sides_bound_the_same_calls() -> None:
    machine = Machine()
    row = ([[*range(8)]], [[-1.0] * 8])
    assert machine.both("observe_top", 0, *row, None) == "StateError"
    machine.both("begin", 0, [])
    assert machine.both("observe_top", 0, *row, None) == "InputError"
    machine.both("begin", 0, [1, 2, 3])
    assert machine.both("observe_top", 0, *row, None) is None
    assert machine.both("observe_top", 0, [[1, 2, 1]], [[-1.0] * 3], None) == "InputError"
    assert machine.both("observe_top", 0, *(2 * part for part in row), None) == "InputError"
    for first in (-1, 3, 4):
        assert machine.both("observe_top", 0, *row, first) == "InputError"
    assert machine.both("observe_top", 5, *row, None) == "InputError"
