"""One request, or a few: limits, texts, chunks, cancelling, timeouts, choice of drafts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.engine_checks import Job, check_chunks
from helpers.fake_target import END, FakeTarget, Garbage, Oracle
from ngramspec._native.policy.auto import PROBE
from ngramspec.engine import (
    AutoPolicy,
    Chunk,
    Engine,
    Generation,
    Request,
    Speculation,
)
from ngramspec.errors import InputError


def request(*ids: int, **fields: Any) -> Request:
    return Request(prompt_ids=int32(list(ids)), **fields)


def run(engine: Engine, asked: Request) -> tuple[Generation, list[Chunk]]:
    chunks: list[Chunk] = []
    answer = engine.submit(asked, chunks.append)
    while engine.step():
        pass
    check_chunks(Job(answer, chunks, ([], "", "")))
    return answer, chunks


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("most", [0, 1, 2, 7, 8, 9, 50])
def test_max_tokens_is_met_exactly(most: int, right: float) -> None:
    target = FakeTarget()
    answer, chunks = run(Engine(target, Oracle(target, right)), request(1, 2, max_tokens=most))
    assert (answer.token_ids, answer.finish_reason) == (target.expected([1, 2], most), "length")
    assert chunks[-1].finish_reason == "length"
    assert len(target.held[0]) <= 2 + most


def test_no_tokens_take_one_step() -> None:
    target = FakeTarget()
    answer, chunks = run(Engine(target, Oracle(target)), request(5, 6, max_tokens=0, logprobs=2))
    assert (answer.token_ids, answer.text, answer.logprobs) == ([], "", [])
    assert (len(target.batches), len(chunks)) == (1, 1)


@pytest.mark.parametrize("drafter", [None, "oracle", "garbage"])
def test_a_full_context_ends_a_request(drafter: str | None) -> None:
    target = FakeTarget(context_size=40)
    drafters = {None: None, "oracle": Oracle(target), "garbage": Garbage(97)}
    engine = Engine(target, drafters[drafter], policy=AutoPolicy(fixed=64))
    for prompt in ([3], [3] * 38, [3] * 39):
        answer, _ = run(engine, request(*prompt))
        assert answer.token_ids == target.expected(prompt, 99)
        assert (len(answer.token_ids), answer.finish_reason) == (40 - len(prompt), "length")


def test_an_end_token_ends_a_request_and_is_not_shown() -> None:
    target = FakeTarget(end_every=13)
    engine = Engine(target, Oracle(target), slots=2)
    for first in range(1, 20):
        answer, _ = run(engine, request(first, special=True))
        assert answer.token_ids == target.expected([first], 256)
        assert answer.finish_reason == ("stop" if len(answer.token_ids) < 255 else "length")
        assert END not in answer.token_ids
        assert "<end>" not in answer.text


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_a_stop_text_cuts_the_text_wherever_drafts_end(right: float) -> None:
    target = FakeTarget(period=0)
    full = target.expected([4], 40)
    for place in range(0, 30, 3):
        stop = f" {full[place]} {full[place + 1]}"[:-1]
        expected = target.outcome([4], 40, [stop])
        engine = Engine(target, Oracle(target, right, place), policy=AutoPolicy(fixed=6))
        answer, _ = run(engine, request(4, max_tokens=40, stop=("never", stop)))
        assert (answer.token_ids, answer.text, answer.finish_reason) == expected
        assert (answer.stop_text, stop in answer.text) == (stop, False)


def test_accepted_tokens_and_spans_are_those_of_the_draft() -> None:
    target = FakeTarget()
    answer, chunks = run(
        Engine(target, Oracle(target), policy=AutoPolicy(fixed=3)), request(8, max_tokens=9)
    )
    assert [chunk.num_accepted for chunk in chunks] == [0, 3, 3]
    assert answer.accepted == [False, True, True, True, False, True, True, True, False]
    tokens = [f" {token}" for token in target.expected([8], 9)]
    assert chunks[1].spans == (("".join(tokens[1:4]), True), (tokens[4], False))
    assert answer.timings.num_accepted_tokens == 6


@pytest.mark.parametrize("right", [0.3, 1.0])
def test_logprobs_come_from_the_row_that_each_token_was_chosen_in(right: float) -> None:
    target = FakeTarget()
    asked = request(8, max_tokens=20, logprobs=2)
    answer, _ = run(Engine(target, Oracle(target, right)), asked)
    assert [entry.token_id for entry in answer.logprobs] == target.expected([8], 20)
    for entry in answer.logprobs:
        assert entry.logprob == pytest.approx(-0.00435, abs=1e-4)
        assert (len(entry.top), entry.top[0][0]) == (2, entry.token_id)
    answer, _ = run(Engine(target, None), request(8, max_tokens=2, logprobs=1000))
    assert [len(entry.top) for entry in answer.logprobs] == [97, 97]


def test_a_cancelled_request_frees_its_slot_within_one_step() -> None:
    target = FakeTarget(max_batch=8)
    engine = Engine(target, Oracle(target))
    for steps in (0, 1, 2, 3, 5):  # waiting, in the prompt, decoding
        answers = [engine.submit(request(*[9] * 20)) for _ in range(2)]
        for _ in range(steps):
            engine.step()
        answers[0].cancel()
        engine.step()
        assert (answers[0].finish_reason, answers[1].slot) == ("cancelled", 0)
        answers[1].cancel()
        assert engine.step() is False
        assert answers[0].token_ids == target.expected([9] * 20, 99)[: len(answers[0].token_ids)]
        assert engine.slots()[0].state == "idle"


def test_cancelling_gives_out_text_that_was_held_back() -> None:
    target = FakeTarget()
    chunks: list[Chunk] = []
    tokens = target.expected([5], 3)
    stop = "".join(f" {token}" for token in tokens) + " never"
    engine = Engine(target, None)
    answer = engine.submit(request(5, stop=(stop,)), chunks.append)
    for _ in range(2):
        engine.step()
    assert (answer.text, len(answer.token_ids)) == ("", 2)
    answer.cancel()
    engine.step()
    assert answer.text == chunks[-1].text == "".join(f" {token}" for token in tokens[:2])
    assert chunks[-1].spans == ((f" {tokens[0]} {tokens[1]}", False),)


def test_cancelling_a_finished_request_changes_nothing() -> None:
    engine = Engine(FakeTarget(), None)
    answer, _ = run(engine, request(1, max_tokens=3))
    answer.cancel()
    again, _ = run(engine, request(1, max_tokens=3))
    assert (answer.finish_reason, again.finish_reason) == ("length", "length")


def test_time_that_is_up_ends_a_request_by_length() -> None:
    class Slow(FakeTarget):
        def decode(self, batch: Any, rows: Any) -> None:
            time.sleep(0.002)
            super().decode(batch, rows)

    target = Slow(context_size=5000)
    engine = Engine(target, None)
    answer, _ = run(engine, request(1, timeout=0.05))
    assert (answer.finish_reason, answer.error) == ("length", None)
    assert answer.token_ids == target.expected([1], len(answer.token_ids))
    assert 1 <= len(answer.token_ids) < 30
    assert run(engine, request(1, max_tokens=2, timeout=60.0))[0].finish_reason == "length"


def test_waiting_for_a_slot_does_not_count_as_time() -> None:
    target = FakeTarget()
    engine = Engine(target, None)
    first = engine.submit(request(1, max_tokens=5))
    second = engine.submit(request(2, max_tokens=3, timeout=0.25))
    time.sleep(0.3)
    while engine.step():
        pass
    assert [len(first.token_ids), len(second.token_ids)] == [5, 3]


def test_speculation_may_be_off_or_shorter_for_one_request() -> None:
    target = FakeTarget()
    engine = Engine(target, Oracle(target), policy=AutoPolicy(fixed=16))
    for speculation, longest in (
        (Speculation(enabled=False), 0),
        (Speculation(max_draft=0), 0),
        (Speculation(max_draft=5), 5),
        (Speculation(), 16),
    ):
        target.batches.clear()
        answer, _ = run(engine, request(7, max_tokens=40, speculation=speculation))
        assert answer.token_ids == target.expected([7], 40)
        assert max(target.batches) == 1 + longest


class Short(Oracle):
    """Drafts 3 tokens at most."""

    def draft(self, slot: int, limit: int) -> np.ndarray:
        return super().draft(slot, min(limit, 3))


@pytest.mark.parametrize("policy", [AutoPolicy(fixed=16), None], ids=["fixed", "auto"])
@pytest.mark.parametrize("drafter", ["own", "ngram-simple"])
def test_drafts_may_have_a_least_length(policy: Any, drafter: str) -> None:
    def num_drafts(least: int, own: int | None) -> int:
        target = FakeTarget(period=5)
        source: Any = Short(target) if drafter == "own" else drafter
        params = None if drafter == "own" else {drafter: {"size_n": 2, "size_m": 3}}
        engine = Engine(target, source, params=params, policy=policy, min_draft=least)
        asked = request(7, max_tokens=80, speculation=Speculation(min_draft=own))
        assert run(engine, asked)[0].token_ids == target.expected([7], 80)
        return engine.stats().num_drafts

    assert num_drafts(0, None) > 0
    assert num_drafts(3, None) > 0
    assert num_drafts(4, None) == num_drafts(0, 4) == 0
    assert num_drafts(4, 0) > 0
    with pytest.raises(InputError, match="min_draft must be >= 0, got -1"):
        num_drafts(-1, None)


class WrongAtFirst(Oracle):
    """Is right after the first two drafts."""

    asked = 0

    def draft(self, slot: int, limit: int) -> np.ndarray:
        draft = super().draft(slot, limit)
        self.asked += 1
        if self.asked <= 2:
            draft = 1 + draft % (self.target.vocab_size - 1)
            self.drafts[slot] = draft.tolist()
        return draft


def test_a_gate_goes_on_to_ask_for_drafts_of_the_least_length() -> None:
    """It learns from what is sent, so it must not stay below what is sent at all."""
    target = FakeTarget()
    source: Any = WrongAtFirst(target)
    answer, _ = run(
        Engine(target, source, policy=AutoPolicy(gate=True), min_draft=16),
        request(7, max_tokens=220),
    )
    assert answer.token_ids == target.expected([7], 220)
    assert answer.timings.num_accepted_tokens > 100


def test_a_target_that_takes_nothing_back_gets_no_drafts() -> None:
    target = FakeTarget(max_rollback=0)
    oracle = Oracle(target)
    answer, _ = run(Engine(target, oracle), request(7, max_tokens=20, prediction_ids=int32([1, 2])))
    assert answer.token_ids == target.expected([7], 20)
    assert (oracle.begun, set(target.batches)) == (0, {1})


@pytest.mark.parametrize("drafter", ["ngram-mod", ["ngram-cache"], ("ngram-simple", "ngram-mod")])
def test_drafters_are_named_or_listed(drafter: Any) -> None:
    target = FakeTarget()
    engine = Engine(target, drafter)
    assert run(engine, request(7, max_tokens=60))[0].token_ids == target.expected([7], 60)
    assert sum(source.propose_calls for source in engine.source_stats().values()) > 0


def test_exact_engines_keep_batches_inside_the_setting() -> None:
    target = FakeTarget(exact_batch=6, max_batch=64)
    engine = Engine(target, Oracle(target), slots=3, exact=True, policy=AutoPolicy(fixed=64))
    asked = [request(*range(1, 30 + i), max_tokens=40) for i in range(5)]
    answers = engine.generate(asked)
    assert [one.token_ids for one in answers] == [
        target.expected(one.prompt_ids.tolist(), 40) for one in asked
    ]
    assert max(target.batches) == 6
    assert engine.stats().num_accepted_tokens > 0
    small = FakeTarget(exact_batch=64, max_batch=5)
    Engine(small, Oracle(small), exact=True).generate(asked[:1])
    assert max(small.batches) == 5


def test_seeds_that_are_not_given_are_told() -> None:
    engine = Engine(FakeTarget(), None)
    seeds = [engine.submit(request(1, max_tokens=1)).seed for _ in range(3)]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 1 << 32 for seed in seeds)


@pytest.mark.parametrize("drafter", ["own", "ngram-simple"])
def test_a_gate_hears_of_every_draft(drafter: str) -> None:
    target, policy = FakeTarget(period=7), AutoPolicy(gate=True)
    source: Any = Oracle(target) if drafter == "own" else drafter
    name = "oracle" if drafter == "own" else "ngram"
    for _ in range(40):  # drafts that are never right
        policy.limit(0, name)
        policy.record(0, name, 8, 0)
    policy.begin(0)
    assert policy.limit(0, name) == PROBE
    run(Engine(target, source, policy=policy), request(7, max_tokens=200))
    assert policy.limit(0, name) == 64


def test_a_policy_hears_of_every_decode_without_prompt_tokens() -> None:
    target, policy = FakeTarget(), AutoPolicy(fixed=4)
    engine = Engine(target, Oracle(target), policy=policy)
    run(engine, request(8, max_tokens=1))
    assert not policy.timed
    run(engine, request(7, max_tokens=11))
    assert (policy.timed, max(target.batches)) == (True, 5)


def test_a_new_engine_finds_its_target_empty() -> None:
    target = FakeTarget()
    for first in (3, 4):
        answer, _ = run(Engine(target, None, slots=2), request(first, max_tokens=9))
        assert answer.token_ids == target.expected([first], 9)
        assert answer.timings.num_cached == 0


def test_the_engine_tells_its_size() -> None:
    engine = Engine(FakeTarget(context_size=77), None, slots=3)
    assert (engine.context_size, engine.num_slots, len(engine.slots())) == (77, 3, 3)
    engine.submit(request(1))
    assert (engine.queue_length, engine.busy) == (1, True)
    engine.step()
    assert (engine.queue_length, engine.busy) == (0, True)


@pytest.mark.parametrize("max_outputs", [3, 4, 9])
def test_drafts_are_no_longer_than_there_are_rows_of_logits(max_outputs: int) -> None:
    target = FakeTarget(max_batch=64, max_outputs=max_outputs, period=0)
    engine = Engine(target, Oracle(target), slots=3, policy=AutoPolicy(fixed=64))
    requests = [Request(prompt_ids=int32([i, *range(1, 30)]), max_tokens=40) for i in (1, 2, 3)]
    for answer, asked in zip(engine.generate(requests), requests, strict=True):
        assert answer.token_ids == target.expected(asked.prompt_ids.tolist(), 40)
    assert engine.stats().num_accepted_tokens > 0 or max_outputs == 3
    with pytest.raises(InputError, match="4 slots need batches of 4 tokens, the target allows 3"):
        Engine(FakeTarget(max_outputs=3), None, slots=4)


def test_an_own_drafter_takes_no_names_of_others() -> None:
    target = FakeTarget()
    engine = Engine(target, Oracle(target))
    for asked in (Speculation(types=("suffix",)), Speculation(params={"suffix": {"alpha": 1}})):
        with pytest.raises(InputError, match="an engine with a drafter of its own"):
            engine.submit(Request(prompt_ids=int32([1, 2]), speculation=asked))


def test_an_idle_slot_keeps_nothing_of_its_last_request() -> None:
    """A sampler may hold a grammar of megabytes."""
    engine = Engine(FakeTarget(), None)
    engine.generate([request(1, 2, max_tokens=3)])
    (slot,) = engine._slots
    assert (slot.generation, slot.sampler, slot.transcript, slot.timings) == (None,) * 4
