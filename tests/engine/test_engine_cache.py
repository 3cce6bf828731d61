"""What slots keep: prefixes used again, copies of other slots, rollback, checkpoints, re-reads."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Garbage, Oracle
from ngramspec.engine import AutoPolicy, Engine, Generation, Request, Speculation

LONG = [1 + i % 90 for i in range(60)]


def run(engine: Engine, prompt: list[int], most: int = 10, **fields: Any) -> Generation:
    answer = engine.submit(Request(prompt_ids=int32(prompt), max_tokens=most, **fields))
    while engine.step():
        pass
    target: Any = engine._target
    assert answer.token_ids == target.expected(prompt, most)
    assert [len(target.held[slot.id]) for slot in engine.slots()] == [
        slot.num_past for slot in engine.slots()
    ]
    return answer


def test_the_next_turn_reads_only_what_is_new() -> None:
    target = FakeTarget()
    engine = Engine(target, None)
    first = run(engine, LONG)
    text = LONG + first.token_ids
    target.batches.clear()
    second = run(engine, [*text, 7, 8])
    assert second.timings.num_cached == len(text) - 1  # the last token was never decoded
    assert target.batches[0] == 3


@pytest.mark.parametrize("shared", [0, 1, 30, 59])
def test_a_changed_prompt_keeps_what_is_the_same(shared: int) -> None:
    target = FakeTarget()
    engine = Engine(target, Oracle(target))
    run(engine, LONG)
    answer = run(engine, [*LONG[:shared], 96, 95, 94])
    assert answer.timings.num_cached == shared


@pytest.mark.parametrize("memory", [{}, {"max_rollback": 0, "can_save": True}, {"max_rollback": 3}])
def test_an_equal_prompt_reads_its_last_token_again(memory: dict[str, Any]) -> None:
    target = FakeTarget(**memory)
    engine = Engine(target, Oracle(target))
    assert run(engine, LONG).timings.num_cached == 0
    again = run(engine, LONG)
    assert again.timings.num_cached == (0 if memory else len(LONG) - 1)


def test_a_recurrent_target_goes_on_where_the_text_only_grows() -> None:
    target = FakeTarget(max_rollback=0)
    engine = Engine(target, None)
    first = run(engine, LONG)
    text = LONG + first.token_ids
    assert run(engine, [*text, 5]).timings.num_cached == len(text) - 1
    assert engine.stats().num_rollback_failures == 0


def test_prompts_may_ask_not_to_use_the_cache() -> None:
    engine = Engine(FakeTarget(), None)
    run(engine, LONG)
    assert run(engine, LONG, cache_prompt=False).timings.num_cached == 0
    assert engine.stats().num_cached_tokens == 0


def test_namespaces_do_not_see_each_others_text() -> None:
    engine = Engine(FakeTarget(), None, slots=2)
    run(engine, LONG, speculation=Speculation(namespace="a"))
    for namespace, cached in (("b", 0), ("", 0), ("a", 0)):  # both slots were given away again
        answer = run(engine, LONG, speculation=Speculation(namespace=namespace))
        assert answer.timings.num_cached == cached
    engine = Engine(FakeTarget(), None, slots=2)
    run(engine, LONG, speculation=Speculation(namespace="a"), slot=1)
    run(engine, LONG, speculation=Speculation(namespace="b"), slot=0)
    answer = run(engine, LONG, speculation=Speculation(namespace="a"))
    assert (answer.slot, answer.timings.num_cached) == (1, len(LONG) - 1)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 8, 12])
def test_a_cancelled_prompt_leaves_what_was_read_of_it(steps: int) -> None:
    target = FakeTarget(max_batch=8)
    engine = Engine(target, None)
    gone = engine.submit(Request(prompt_ids=int32(LONG)))
    for _ in range(steps):
        engine.step()
    gone.cancel()
    engine.step()
    answer = run(engine, LONG)
    assert answer.timings.num_cached == min(8 * steps, len(LONG) - 1)


def test_a_running_slot_gives_a_copy_of_its_prefix() -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2)
    first = engine.submit(Request(prompt_ids=int32(LONG), max_tokens=20))
    for _ in range(3):
        engine.step()
    second = run(engine, [*LONG, 3])
    assert (first.slot, second.slot) == (0, 1)
    assert second.timings.num_cached == len(LONG)
    assert first.token_ids == target.expected(LONG, 20)


def test_a_copy_holds_no_more_than_the_donor_has_read() -> None:
    target = FakeTarget(max_batch=40)
    engine = Engine(target, None, slots=2)
    engine.submit(Request(prompt_ids=int32(LONG), max_tokens=20))
    engine.step()  # 40 of 60 tokens
    assert run(engine, LONG).timings.num_cached == 40


def test_copies_are_not_made_for_a_few_tokens_or_where_they_cannot_be() -> None:
    for length, min_copy in ((20, 32), (60, None), (60, 64)):
        engine = Engine(FakeTarget(min_copy=min_copy), None, slots=2)
        running = engine.submit(Request(prompt_ids=int32(LONG[:length]), max_tokens=30))
        engine.step()
        assert run(engine, LONG[:length], 5).timings.num_cached == 0
        assert running.slot == 0


def test_a_copy_replaces_what_the_slot_held() -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2)
    run(engine, [50] * 30, slot=1)
    engine.submit(Request(prompt_ids=int32(LONG), max_tokens=30, slot=0))
    engine.step()
    answer = run(engine, [*LONG[:-1], 77])
    assert (answer.slot, answer.timings.num_cached) == (1, len(LONG) - 1)


class TwoRight(Oracle):
    """Two tokens of every draft are right."""

    def draft(self, slot: int, limit: int) -> Any:
        draft = super().draft(slot, limit)
        draft[2:3] = 1 + draft[2:3] % 96
        self.drafts[slot] = draft.tolist()
        return draft


def test_checkpoints_read_accepted_tokens_again_with_the_next_ones() -> None:
    target = FakeTarget(max_rollback=0, can_save=True, period=5, context_size=1000)
    oracle = TwoRight(target)
    engine = Engine(target, oracle, policy=AutoPolicy(fixed=4))
    answer = run(engine, [3, 4], 500)
    # One new token, two accepted ones and the next; then too many for a draft behind them.
    assert target.batches[:9] == [2, 1 + 4, 4 + 4, 7 + 4, 10, 1 + 4, 4 + 4, 7 + 4, 10]
    assert max(target.batches) == 11
    assert sum(target.batches) < 4 * 500
    assert (len(answer.token_ids), oracle.complaints) == (500, [])
    assert engine.stats().num_rollback_failures == 0


def test_right_drafts_need_no_checkpoint() -> None:
    target = FakeTarget(max_rollback=0, can_save=True)
    engine = Engine(target, Oracle(target), policy=AutoPolicy(fixed=4))
    run(engine, [3, 4], 31)
    assert target.batches == [2, 5, 5, 5, 5, 5, 5]


def test_drafts_are_no_longer_than_the_target_can_take_back() -> None:
    target = FakeTarget(max_rollback=3)
    engine = Engine(target, Garbage(97, broken=False), policy=AutoPolicy(fixed=30))
    run(engine, [3, 4], 30)
    assert max(target.batches) == 4
    assert engine.stats().num_rollback_failures == 0


@pytest.mark.parametrize("memory", [{}, {"max_rollback": 0, "can_save": True}])
def test_refused_rollbacks_are_read_again_in_parts(memory: dict[str, Any]) -> None:
    target = FakeTarget(refusal=1.0, max_batch=16, **memory)
    engine = Engine(target, Oracle(target, 0.5), policy=AutoPolicy(fixed=4))
    answer = run(engine, LONG, 30)
    failures = engine.stats().num_rollback_failures
    assert failures > 3
    assert sum(target.batches) > failures * len(LONG)
    assert max(target.batches) <= 16
    assert answer.timings.num_steps < 30


def test_an_own_prefix_of_a_dropped_sequence_is_read_again() -> None:
    target = FakeTarget()
    engine = Engine(target, None)
    first = engine.submit(Request(prompt_ids=int32(LONG)))
    engine.step()
    engine.fail(RuntimeError("something"))
    assert (first.finish_reason, target.held) == ("error", [[]] * 4)
    assert run(engine, LONG).timings.num_cached == 0


def test_a_slot_that_was_left_empty_is_no_donor() -> None:
    target = FakeTarget(cells=75)
    engine = Engine(target, None, slots=2)
    run(engine, LONG, 5, slot=0)
    run(engine, [90] * 30, 5, slot=1)  # no room: slot 0 is emptied
    assert target.held[0] == []
    answer = run(engine, LONG, 5, slot=0)
    assert answer.timings.num_cached == 0
