"""A gate: what drafts cost where they are never right, counted in decodes and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Garbage, Oracle
from ngramspec.engine import (
    AutoPolicy,
    Chunk,
    Engine,
    EngineStats,
    Generation,
    Request,
)

pytestmark = pytest.mark.usefixtures("still")

TOKENS = 1500
START = 200  # tokens in which the gate may still learn that drafts do not pay
WASTE = 0.03  # share of drafted tokens per emitted one after that; 3 tokens in 129 steps are 0.023
MEMORIES: dict[str, dict[str, Any]] = {
    "any rollback": {},
    "snapshots": {"max_rollback": 8},
    "checkpoints": {"max_rollback": 0, "can_save": True},
}
DRAFTERS: dict[str, Callable[[FakeTarget], Any]] = {
    "garbage": lambda target: Garbage(target.vocab_size, broken=False),
    "wrong at a random place": lambda target: Oracle(target, 0.0),
    "n-grams": lambda target: "ngram-simple,ngram-map-k,ngram-mod,ngram-cache",
}


def run(
    drafter: Any, slots: int, count: int, most: int, **memory: Any
) -> tuple[EngineStats, list[Generation], list[int]]:
    """Return counters, generations, and how much each had drafted by its token START."""
    target = FakeTarget(
        vocab_size=997, sequences=8, context_size=TOKENS + 40, max_batch=512, period=0, **memory
    )
    params = {"ngram-simple": {"size_n": 2}, "ngram-mod": {"n_match": 2, "n_min": 1}}
    source = drafter(target) if drafter else None
    engine = Engine(target, source, slots=slots, params=params, policy=AutoPolicy(gate=True))
    begun = [0] * count

    def note(chunk: Chunk) -> None:
        answer = chunk.generation
        if answer.num_tokens <= START:
            begun[int(answer.request.id)] = answer.timings.num_draft_tokens

    requests = [
        Request(prompt_ids=int32([1 + i, 2, 3]), max_tokens=most, id=str(i)) for i in range(count)
    ]
    answers = [engine.submit(request, note) for request in requests]
    while engine.step():
        pass
    for one in answers:
        assert one.token_ids == target.expected(one.request.prompt_ids.tolist(), most)
    return engine.stats(), answers, begun


SETTINGS = [(1, "any rollback"), (8, "any rollback"), *((4, memory) for memory in MEMORIES)]


@pytest.mark.parametrize(("slots", "memory"), SETTINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_wrong_drafts_take_no_more_steps_and_few_tokens(
    drafter: str, slots: int, memory: str
) -> None:
    stats, answers, begun = run(DRAFTERS[drafter], slots, slots, TOKENS, **MEMORIES[memory])
    assert stats.num_steps <= TOKENS  # as many as without drafts
    assert stats.num_drafts > 0 or (drafter, slots) == ("n-grams", 1)
    for one in answers:
        assert one.timings.num_steps + one.timings.num_accepted_tokens == TOKENS
    wasted = stats.num_draft_tokens - stats.num_accepted_tokens
    if drafter != "garbage":  # right now and then, and given a chance for it
        assert wasted <= 0.1 * stats.num_emitted_tokens + 64 * slots  # the first one is long
        return
    late = slots * (TOKENS - START)
    assert wasted - sum(begun) <= WASTE * late
    again = 0.02 if memory == "checkpoints" else 0.0  # tokens that are read twice
    extra = stats.num_batch_tokens - stats.num_prompt_tokens - stats.num_emitted_tokens + slots
    assert extra - sum(begun) <= (WASTE + again) * late


def test_without_a_drafter_there_is_one_step_per_token() -> None:
    for slots in (1, 4, 8):
        stats, _, _ = run(None, slots, slots, 300)
        assert stats.num_steps == 300
        assert stats.num_batch_tokens == stats.num_prompt_tokens + slots * 299


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_short_requests_learn_from_those_before_them(slots: int) -> None:
    stats, answers, _ = run(DRAFTERS["garbage"], slots, 64, 100)
    assert stats.num_steps <= 100 * 64 // slots
    late = answers[32:]
    drafted = sum(one.timings.num_draft_tokens for one in late)
    assert drafted <= 0.1 * sum(len(one.token_ids) for one in late)
    assert all(one.timings.num_draft_tokens <= 9 for one in late)


@pytest.mark.parametrize("slots", [1, 4, 8])
def test_right_drafts_save_most_steps(slots: int) -> None:
    stats, _, _ = run(lambda target: Oracle(target), slots, slots, TOKENS)
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert stats.num_steps <= TOKENS / 20


def test_one_slot_with_wrong_drafts_does_not_slow_down_the_others() -> None:
    class Mixed(Oracle):
        def draft(self, slot: int, limit: int) -> Any:
            self.right = float(slot != 0)
            return super().draft(slot, limit)

    stats, answers, _ = run(lambda target: Mixed(target), 4, 4, 600)
    assert stats.num_steps <= 600
    assert answers[0].timings.num_steps > 300
    assert all(one.timings.num_steps <= 40 for one in answers[1:])
