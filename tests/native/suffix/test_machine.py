"""The suffix drafter against its slow reference: two slots on one pool that is always full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from helpers.backends import Backend, Native, Reference
from helpers.machines import NUM_SLOTS, SETTINGS, SLOTS, SideBySide

CAPACITY = 4096  # 19 blocks: after a few texts each new one takes another's place
SHORTER = settings(SETTINGS, max_examples=max(1, SETTINGS.max_examples // 3))
SEEDS = st.integers(0, 7)  # few, so that long texts come again


def long_text(seed: int, max_token: int) -> list[int]:
    """Up to three blocks of tokens, their second half like the first but for single tokens."""
    rng = np.random.default_rng(seed)
    half = rng.integers(0, max_token + 1, rng.integers(20, 350))
    edited = half.copy()
    edited[rng.integers(0, len(half), len(half) // 16)] = 0
    return [*half.tolist(), *edited.tolist()]


class Machine(SideBySide):
    """Claims and the pool's counters must agree too. indexes: static ones by backend, if any."""

    spec = "suffix"
    params: dict[str, Any] = {}  # noqa: RUF012
    indexes: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.pools: dict[str, Any] = {}
        super().__init__()

    def options(self, backend: Backend) -> dict[str, Any]:
        self.pools[backend.name] = backend.suffix_pool(CAPACITY)
        static = self.indexes.get(backend.name)
        return {"pool": self.pools[backend.name], "static": static, **self.params}

    def propose(self, slot: int, max_tokens: int) -> None:
        super().propose(slot, max_tokens)
        if self.is_active(slot):
            claims = self.reference.confidence(slot)
            assert self.native.confidence(slot) == pytest.approx(claims, abs=0.002)

    @rule(slot=SLOTS, seed=SEEDS, data=st.data())
    def say(self, slot: int, seed: int, data: st.DataObject) -> None:
        """The target emits a long text at once."""
        self.both("accept", slot, long_text(seed, self.max_token), 0)
        self.decode(slot, data)

    @rule(slot=SLOTS, seed=SEEDS, cut=st.integers(0, 60), data=st.data())
    def begin_with_a_known_prompt(
        self, slot: int, seed: int, cut: int, data: st.DataObject
    ) -> None:
        prompt = long_text(seed, self.max_token)
        self.both("begin", slot, prompt[cut:] + self.text(data, slot))
        self.decode(slot, data)

    @rule(slot=SLOTS, data=st.data())
    def begin_like_the_other(self, slot: int, data: st.DataObject) -> None:
        """Its text so far, as a prompt: the pool holds some of it."""
        self.both("begin", slot, self.reference.history(1 - slot)[-400:])
        self.decode(slot, data)

    @precondition(lambda self: self.is_active(0))
    @rule(data=st.data())
    def shorten(self, data: st.DataObject) -> None:
        self.propose(0, 64)
        length = len(self.reference.slots[0].draft)
        self.both("shorten", 0, data.draw(st.integers(0, length + 1)))
        self.accept(0, data.draw(st.sampled_from(["all", "wrong"])), data)

    @rule()
    def clear(self) -> None:
        for pool in self.pools.values():
            pool.clear()

    @invariant()
    def pools_agree(self) -> None:
        native, reference = self.pools["native"], self.pools["reference"]
        for name in ("num_tokens", "num_known", "num_evicted"):
            assert getattr(native, name) == getattr(reference, name), name
        assert 0 <= native.num_tokens <= native.capacity


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "defaults": (3, {}),
    "short drafts": (1, {"max_draft": 5, "min_probability": 0.3}),
    "outputs only": (5, {"pool_prompts": False, "min_probability": 0.0}),
    "alone": (2, {"share": False, "max_draft": 20}),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", CASES)
def test_native_and_reference_agree_on_every_call(name: str) -> None:
    class Case(Machine):
        pass

    Case.max_token, Case.params = CASES[name]
    run_state_machine_as_test(Case, settings=SETTINGS)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", ["defaults", "alone"])
def test_they_agree_with_a_static_index_too(name: str) -> None:
    class Case(Machine):
        pass

    Case.max_token, Case.params = CASES[name]
    texts = [[1], [0, 1, 0, 1, 1], *(long_text(seed, Case.max_token) for seed in (0, 2, 4))]
    Case.indexes = {side.name: side.suffix_index(texts) for side in (Native(), Reference())}
    run_state_machine_as_test(Case, settings=SHORTER)


def test_both_sides_bound_the_same_calls() -> None:
    machine = Machine()
    machine.both("begin", 0, [1, 2, 3, 1, 2])
    machine.propose(0, 8)
    assert machine.both("shorten", 0, 99) == "InputError"
    assert machine.both("shorten", 0, -1) == "InputError"
    assert machine.both("shorten", 1, 0) == "StateError"
    assert machine.both("confidence", NUM_SLOTS) == "InputError"
