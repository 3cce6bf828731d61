"""Slots side by side: prompts and drafts share the decodes, nobody waits for somebody else."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Garbage, Oracle
from ngramspec.engine import AutoPolicy, Engine, Generation, Request, Speculation

pytestmark = pytest.mark.usefixtures("still")


def submit(engine: Engine, prompt: list[int], most: int = 30, **fields: Any) -> Generation:
    return engine.submit(Request(prompt_ids=int32(prompt), max_tokens=most, **fields))


def finish(engine: Engine) -> None:
    while engine.step():
        pass


def test_prompts_are_read_while_others_decode() -> None:
    target = FakeTarget(max_batch=16, context_size=500)
    engine = Engine(target, None, slots=3)
    first = submit(engine, [1], 60)
    engine.step()
    second = submit(engine, [2] * 100, 5)
    for step in range(1, 8):
        engine.step()
        assert len(first.token_ids) == 1 + step
        assert engine.slots()[1].num_past == min(100, 15 * step)
    assert len(second.token_ids) == 1
    finish(engine)
    assert first.token_ids == target.expected([1], 60)
    assert second.token_ids == target.expected([2] * 100, 5)


def test_prompts_are_read_in_the_order_of_their_arrival() -> None:
    engine = Engine(FakeTarget(max_batch=16), None, slots=3)
    answers = [submit(engine, [i + 1] * 20, 1) for i in range(3)]
    pasts = []
    for _ in range(4):
        engine.step()
        pasts.append([slot.num_past for slot in engine.slots()])
    assert pasts == [[16, 0, 0], [20, 12, 0], [20, 20, 8], [20, 20, 20]]
    assert [one.finish_reason for one in answers] == ["length"] * 3


def test_long_drafts_leave_three_quarters_to_prompts() -> None:
    target = FakeTarget(max_batch=64, context_size=2000)
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=64))
    first = submit(engine, [1], 400)
    engine.step()
    engine.step()
    assert target.batches[-1] == 64
    submit(engine, [2] * 480, 1)
    emitted = len(first.token_ids)
    for step in range(1, 10):
        engine.step()
        assert engine.slots()[1].num_past == 48 * step
        assert len(first.token_ids) == emitted + 16 * step
    finish(engine)
    assert first.token_ids == target.expected([1], 400)


def test_drafts_shrink_fairly_when_slots_compete() -> None:
    target = FakeTarget(max_batch=34, context_size=2000, sequences=8)
    engine = Engine(target, Oracle(target), slots=4, policy=AutoPolicy(fixed=64))
    answers = [submit(engine, [i + 1], 200) for i in range(4)]
    for _ in range(4):
        engine.step()
    sizes = [one.timings.num_draft_tokens for one in answers]
    assert sum(sizes) == 3 * 30  # all the room there was
    assert max(sizes) - min(sizes) <= 3
    finish(engine)
    assert [one.token_ids for one in answers] == [
        target.expected(one.request.prompt_ids.tolist(), 200) for one in answers
    ]


def test_a_small_draft_is_not_cut_for_large_ones() -> None:
    target = FakeTarget(max_batch=32, context_size=2000)
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=64))
    small = submit(engine, [1], 100, speculation=Speculation(max_draft=2))
    large = submit(engine, [2], 100)
    for _ in range(3):
        engine.step()
    assert (small.timings.num_draft_tokens, large.timings.num_draft_tokens) == (4, 56)


def test_sources_are_asked_for_no_more_than_a_decode_holds() -> None:
    class Noted(Oracle):
        def draft(self, slot: int, limit: int) -> Any:
            self.check(limit <= 7, f"asked for {limit} tokens")
            return super().draft(slot, limit)

    target = FakeTarget(max_batch=8)
    oracle = Noted(target)
    engine = Engine(target, oracle, policy=AutoPolicy(fixed=64))
    answer = submit(engine, [1], 30)
    finish(engine)
    assert answer.token_ids == target.expected([1], 30)
    assert (max(target.batches), oracle.complaints) == (8, [])


def test_a_draft_without_room_is_no_draft() -> None:
    target = FakeTarget(max_batch=4)
    engine = Engine(target, Oracle(target), slots=4, policy=AutoPolicy(fixed=8))
    answers = [submit(engine, [i + 1], 20) for i in range(4)]
    finish(engine)
    assert [one.token_ids for one in answers] == [target.expected([i + 1], 20) for i in range(4)]
    assert (engine.stats().num_drafts, engine.stats().draft_lengths.count) == (0, 0)
    assert [one.timings.num_drafts for one in answers] == [0] * 4


def test_waiting_for_a_busy_slot_does_not_hold_up_others() -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2)
    running = submit(engine, [1], 30, slot=0)
    engine.step()
    pinned = submit(engine, [2], 5, slot=0)
    others = [submit(engine, [3 + i], 5) for i in range(3)]
    for _ in range(15):
        engine.step()
    assert [one.finish_reason for one in others] == ["length"] * 3
    assert [one.slot for one in others] == [1] * 3
    assert (pinned.slot, running.finish_reason) == (-1, None)
    finish(engine)
    assert (pinned.slot, pinned.token_ids) == (0, target.expected([2], 5))


def test_a_pinned_request_gets_its_slot_before_later_ones() -> None:
    engine = Engine(FakeTarget(), None, slots=2)
    running = [submit(engine, [1 + i], 4, slot=i) for i in range(2)]
    pinned = submit(engine, [5], 4, slot=1)
    later = [submit(engine, [6 + i], 4) for i in range(2)]
    finish(engine)
    assert pinned.slot == 1
    assert pinned.timings.started <= min(one.timings.started for one in later)
    assert [one.finish_reason for one in running] == ["length"] * 2


@pytest.mark.parametrize("slots", [2, 4])
def test_a_slot_that_reads_its_text_again_holds_nobody_up_and_goes_on(slots: int) -> None:
    """Every rollback is refused: the text of the slot with drafts is read again and again."""
    target = FakeTarget(max_batch=slots + 10, refusal=1.0, context_size=400, sequences=slots)
    engine = Engine(target, Oracle(target, 0.0), slots=slots, policy=AutoPolicy(fixed=3))
    off = Speculation(enabled=False)
    slow = submit(engine, [9] * 60, 5, slot=slots - 1)
    others = [submit(engine, [1 + i], 150, speculation=off, slot=i) for i in range(slots - 1)]
    while slow.finish_reason is None:
        before = [len(one.token_ids) for one in others]
        engine.step()
        if all(before):
            assert [len(one.token_ids) for one in others] == [count + 1 for count in before]
    assert slow.token_ids == target.expected([9] * 60, 5)
    assert engine.stats().num_rollback_failures > 0
    assert all(one.finish_reason is None for one in others)


@pytest.mark.parametrize("capacity", [8, 9, 12])
def test_eight_slots_fit_the_smallest_batches(capacity: int) -> None:
    target = FakeTarget(max_batch=capacity, sequences=8)
    engine = Engine(target, Garbage(97, broken=False), slots=8, policy=AutoPolicy(fixed=8))
    answers = [submit(engine, [i + 1] * (i + 1), 25) for i in range(20)]
    finish(engine)
    assert [one.token_ids for one in answers] == [
        target.expected(one.request.prompt_ids.tolist(), 25) for one in answers
    ]
    assert max(target.batches) == capacity
