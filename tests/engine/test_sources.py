"""Speculator: the first source with a draft wins, all of them learn, broken ones are shut out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from ngramspec import create_drafter
from ngramspec._native.engine.slot import Slot
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy
from ngramspec.engine.sources.source import DraftSource, NativeSource
from ngramspec.engine.speculator import Speculator

VALID = np.array([0, *[1] * 9], dtype=np.uint8)  # ten tokens, 0 ends


class Scripted(DraftSource):
    """A source whose drafts are given by slot; it notes all calls."""

    def __init__(self, name: str, drafts: dict[int, Any], fails: Sequence[str] = ()) -> None:
        self.name, self.drafts, self.fails = name, drafts, fails
        self.calls: list[tuple[Any, ...]] = []

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] in self.fails:
            raise ArithmeticError(call[0])

    def begin(self, slot: int, token_ids: np.ndarray) -> None:
        self.note("begin", slot, token_ids.tolist())

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> Any:
        self.note("propose", list(slots), list(limits))
        return [self.drafts.get(slot, int32([])) for slot in slots]

    def accept(self, slot: int, token_ids: np.ndarray, num_accepted: int) -> None:
        self.note("accept", slot, token_ids.tolist(), num_accepted)

    def end(self, slot: int) -> None:
        self.note("end", slot)


def slots(*sources: Any, count: int = 2) -> list[Slot]:
    asking = [Slot(i, 20, 8) for i in range(count)]
    for slot in asking:
        slot.tokens[:3], slot.length, slot.num_prompt = [4, 5, 6], 3, 2
        slot.sources = sources
    return asking


def asker() -> Speculator:
    return Speculator(VALID, AutoPolicy(fixed=64))


def propose(
    slots: list[Slot], limit: Callable[[Slot, str], int], speculator: Speculator | None = None
) -> None:
    proposer: Any = SimpleNamespace(limit=limit, priced=[], asking=None)
    (speculator or asker()).propose(slots, proposer)


def test_sources_are_asked_in_order_until_one_has_a_draft() -> None:
    first = Scripted("first", {1: int32([3, 4])})
    second = Scripted("second", {0: int32([5]), 1: int32([6])})
    third = Scripted("third", {0: int32([7]), 1: int32([7])})
    asking = slots(first, second, third)
    propose(asking, lambda slot, source: 4)
    assert [(s.draft.tolist(), s.draft_source) for s in asking] == [([5], second), ([3, 4], first)]
    assert first.calls == [("propose", [0, 1], [4, 4])]
    assert second.calls == [("propose", [0], [4])]
    assert third.calls == []


def test_each_slot_asks_its_own_sources() -> None:
    first, second = Scripted("first", {0: int32([1])}), Scripted("second", {1: int32([2])})
    asking = slots(count=3)
    asking[0].sources, asking[1].sources = (first, second), (second,)
    propose(asking, lambda slot, source: 4)
    assert [s.draft.tolist() for s in asking] == [[1], [2], []]
    assert second.calls == [("propose", [1], [4])]


def test_a_limit_of_nothing_means_not_asked() -> None:
    first, second = Scripted("first", {1: int32([1])}), Scripted("second", {0: int32([2])})
    asking = slots(first, second)
    limits = {(0, "first"): 0, (1, "first"): 3, (0, "second"): -2, (1, "second"): 9}
    propose(asking, lambda slot, source: limits[slot.id, source])
    assert [s.draft.tolist() for s in asking] == [[], [1]]
    assert (first.calls, second.calls) == ([("propose", [1], [3])], [])


@pytest.mark.parametrize(
    ("draft", "cut"),
    [([1, 2, 3], [1, 2]), ([1, 0, 3], [1]), ([0, 1], []), ([10], []), ([9, 10], [9]), ([], [])],
)
def test_drafts_are_cut_to_the_limit_and_before_invalid_tokens(
    draft: list[int], cut: list[int]
) -> None:
    source = Scripted("one", {0: int32(draft)})
    asking = slots(source, count=1)
    speculator = asker()
    propose(asking, lambda slot, source: 2, speculator)
    assert asking[0].draft.tolist() == cut
    assert asking[0].draft_source is (source if cut else None)
    assert speculator.failures == {}


def test_a_draft_that_is_cut_to_nothing_leaves_the_turn_to_the_next_source() -> None:
    first, second = Scripted("first", {0: int32([0, 1])}), Scripted("second", {0: int32([2])})
    asking = slots(first, second, count=1)
    propose(asking, lambda slot, source: 4)
    assert (asking[0].draft.tolist(), asking[0].draft_source) == ([2], second)


def test_of_sources_with_the_same_tokens_the_first_one_has_drafted() -> None:
    """Whatever the other slots ask."""
    first, second = (
        Scripted("first", {1: int32([3])}),
        Scripted("second", {i: int32([3]) for i in (0, 1)}),
    )
    asking = slots(count=2)
    asking[0].sources, asking[1].sources = (second,), (first, second)
    place = {"batch_tokens": lambda: 2, "decoding": 2, "capacity": 20, "width": 0, "priced": []}
    proposer: Any = SimpleNamespace(
        limit=lambda slot, source: 4, asking=None, ask_next=lambda: None, **place
    )
    policy = AutoPolicy(costs=CostTable(((1, 1.0), (64, 1.001))))
    Speculator(VALID, policy).propose(asking, proposer)
    assert [slot.draft_source for slot in asking] == [second, first]


def test_drafts_are_copies() -> None:
    memory = int32([1, 2, 3])
    asking = slots(Scripted("one", {0: memory, 1: memory}))
    propose(asking, lambda slot, source: 4)
    memory[:] = 9
    assert [s.draft.tolist() for s in asking] == [[1, 2, 3]] * 2


def test_all_sources_learn_and_the_owner_is_told_what_was_right() -> None:
    first, second = Scripted("first", {}), Scripted("second", {0: int32([5, 6, 7])})
    asking = slots(first, second, count=1)
    speculator = asker()
    speculator.begin(asking[0])
    propose(asking, lambda slot, source: 4, speculator)
    speculator.accept(asking[0], asking[0].sources, int32([5, 6, 9]), {second: 2})
    speculator.end(asking[0])
    assert first.calls[0] == second.calls[0] == ("begin", 0, [4, 5])
    assert first.calls[2:] == [("accept", 0, [5, 6, 9], 0), ("end", 0)]
    assert second.calls[2:] == [("accept", 0, [5, 6, 9], 2), ("end", 0)]
    assert asking[0].sources == ()


@pytest.mark.parametrize("method", ["begin", "accept", "end"])
def test_a_source_that_raises_is_off_for_its_slot(method: str) -> None:
    bad, good = Scripted("bad", {}, [method]), Scripted("good", {})
    asking = slots(bad, good)
    speculator = asker()
    for slot in asking[:1]:
        speculator.begin(slot)
        speculator.accept(slot, slot.sources, int32([1]), {})
        assert slot.sources == ((good,) if method != "end" else (bad, good))
        speculator.end(slot)
    assert asking[1].sources == (bad, good)
    assert [call[0] for call in good.calls] == ["begin", "accept", "end"]
    assert speculator.failures == {"bad": 1}


def test_a_failing_owner_loses_its_draft() -> None:
    bad = Scripted("bad", {0: int32([1])}, ["accept"])
    asking = slots(bad, count=1)
    speculator = asker()
    propose(asking, lambda slot, source: 4, speculator)
    speculator.accept(asking[0], asking[0].sources, int32([1, 2]), {bad: 1})
    assert (asking[0].sources, asking[0].draft.size, asking[0].draft_source) == ((), 0, None)


def test_a_batch_that_fails_is_asked_again_slot_by_slot() -> None:
    class Picky(Scripted):
        def propose(self, slots: Sequence[int], limits: Sequence[int]) -> Any:
            self.calls.append(("propose", list(slots), list(limits)))
            if 1 in slots:
                raise ArithmeticError("not slot 1")
            return [int32([2])] * len(slots)

    source = Picky("picky", {})
    asking = slots(source, count=3)
    speculator = asker()
    propose(asking, lambda slot, source: 3, speculator)
    assert source.calls[1:] == [("propose", [i], [3]) for i in range(3)]
    assert [s.draft.tolist() for s in asking] == [[2], [], [2]]
    assert [len(s.sources) for s in asking] == [1, 0, 1]
    assert speculator.failures == {"picky": 1}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_drafts_is_no_answer(count: int) -> None:
    class Careless(Scripted):
        def propose(self, slots: Sequence[int], limits: Sequence[int]) -> Any:
            return [int32([7])] * count

    asking = slots(Careless("careless", {}))
    speculator = asker()
    propose(asking, lambda slot, source: 4, speculator)
    assert all(s.draft.tolist() == ([7] if count else []) for s in asking)
    assert speculator.failures == ({} if count else {"careless": 2})


@pytest.mark.parametrize("draft", [None, 3, "ab", np.array([1, 2]), int32([[1]]), [-1], {1}])
def test_what_is_no_draft_shuts_the_source_out_for_its_slot(draft: Any) -> None:
    source = Scripted("bad", {0: draft, 1: int32([2])})
    asking = slots(source)
    speculator = asker()
    propose(asking, lambda slot, source: 4, speculator)
    assert [s.draft.tolist() for s in asking] == [[], [2]]
    assert [len(s.sources) for s in asking] == [0, 1]
    assert speculator.failures == {"bad": 1}


def test_native_drafters_are_asked_slot_by_slot() -> None:
    drafter = create_drafter("ngram-simple", slots=2, size_n=2, size_m=4)
    source = NativeSource(drafter)
    for slot in (0, 1):
        source.begin(slot, int32([1, 2, 3 + slot, 1]))
        source.accept(slot, int32([2]), 0)
    assert [d.tolist() for d in source.propose([1, 0], [1, 4])] == [[4], [3, 1, 2, 3]]
    source.accept(0, int32([3, 1]), 2)
    source.end(0)
    assert (source.name, source.stats()["ngram-simple"].num_accepted_tokens) == ("ngram", 2)


def test_the_memory_of_a_text_that_was_much_longer_is_freed() -> None:
    drafter = create_drafter("suffix,ngram-cache", slots=2)
    source, sizes = NativeSource(drafter), []
    text = np.random.default_rng(0).integers(0, 5000, 60_000, dtype=np.int32)
    for length in (60_000, 10_000, 7000, 9000):  # the third is an eighth of the longest or less
        source.begin(0, text[:length])
        source.end(0)
        sizes.append(drafter.nbytes)
    assert sizes[1] > 0.9 * sizes[0] > 4 * sizes[2]
    assert sizes[3] < 2 * sizes[2]
    assert drafter.history(0).tolist() == text[:9000].tolist()
    source.begin(0, text[:10])  # as after a source that was shut out: its request has not ended
    source.begin(0, text[:20])
    assert (drafter.length(0), drafter.check()) == (20, "")
