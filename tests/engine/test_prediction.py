"""PredictionSource: drafts from the answer that the caller expects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Garbage
from helpers.machines import SETTINGS
from ngramspec._native.engine.decode import GreedySampler
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.engine import AutoPolicy, Engine, Generation, Request
from ngramspec.engine.sources.source import MATCH, PredictionSource

pytestmark = pytest.mark.usefixtures("still")

PROMPT = [90, 91, 92, 93]
ANSWER = list(range(10, 40))


def source(prediction: list[int], prompt: list[int] = PROMPT) -> PredictionSource:
    drafter = PredictionSource(2)
    drafter.start(
        1, Request(prompt_ids=int32(prompt), prediction_ids=int32(prediction)), GreedySampler()
    )
    drafter.begin(1, int32(prompt))
    return drafter


def propose(drafter: PredictionSource, limit: int = 8) -> list[int]:
    return drafter.propose([1], [limit])[0].tolist()


def test_the_prediction_is_drafted_from_the_first_token_on() -> None:
    drafter = source(ANSWER)
    assert propose(drafter) == ANSWER[:8]  # even before a token is known
    drafter.accept(1, int32(ANSWER[:1]), 0)
    assert propose(drafter) == ANSWER[1:9]
    drafter.accept(1, int32(ANSWER[1:10]), 8)
    assert propose(drafter, 3) == ANSWER[10:13]


def test_nothing_is_drafted_after_a_difference_until_a_few_tokens_agree() -> None:
    drafter = source(ANSWER)
    drafter.accept(1, int32([*ANSWER[:5], 99]), 0)
    assert propose(drafter) == []
    for count in range(1, MATCH + 1):
        drafter.accept(1, int32([ANSWER[9 + count]]), 0)
        assert propose(drafter) == (ANSWER[10 + MATCH :][:8] if count == MATCH else [])


def test_drafts_end_with_the_prediction() -> None:
    drafter = source(ANSWER)
    drafter.accept(1, int32(ANSWER[:-2]), 0)
    assert [token for token in propose(drafter) if token < 97][:2] == ANSWER[-2:]
    vocabulary = 97
    assert propose(drafter)[2] >= vocabulary  # no token: the engine cuts drafts there


def test_a_slot_without_a_new_prediction_drafts_nothing() -> None:
    drafter = source(ANSWER)
    drafter.end(1)
    drafter.begin(1, int32(PROMPT))
    drafter.accept(1, int32(ANSWER[:1]), 0)
    assert propose(drafter) == []


def test_slots_have_their_own_predictions() -> None:
    drafter = source(ANSWER)
    asked = Request(prompt_ids=int32(PROMPT), prediction_ids=int32([7, 8, 9, 10]))
    drafter.start(0, asked, GreedySampler())
    drafter.begin(0, int32(PROMPT))
    drafts = drafter.propose([0, 1], [3, 3])
    assert [draft.tolist() for draft in drafts] == [[7, 8, 9], ANSWER[:3]]


def test_counts_go_under_its_own_name() -> None:
    drafter = source(ANSWER)
    draft = propose(drafter)
    drafter.accept(1, int32([*draft, 1]), 8)
    stats = drafter.stats()
    assert (list(stats), stats["prediction"].name) == (["prediction"], "prediction")
    assert (stats["prediction"].num_draft_tokens, stats["prediction"].acceptance) == (8, 1.0)


def answer(engine: Engine, prompt: list[int], prediction: list[int], most: int = 30) -> Generation:
    request = Request(prompt_ids=int32(prompt), max_tokens=most, prediction_ids=int32(prediction))
    return engine.generate([request])[0]


def test_a_right_prediction_makes_the_answer_take_few_steps() -> None:
    target = FakeTarget(period=0, context_size=900, max_batch=128)
    prompt = [5, 6, 7]
    expected = target.expected(prompt, 500)
    engine = Engine(target, None, policy=AutoPolicy(fixed=DEFAULT_MAX_DRAFT))
    generation = answer(engine, prompt, expected, 500)
    assert generation.token_ids == expected
    assert engine.stats().num_steps <= 2 + 500 // DEFAULT_MAX_DRAFT
    assert generation.timings.num_prediction_accepted == engine.stats().num_accepted_tokens >= 490
    assert generation.timings.num_prediction_rejected == 0
    assert sum(generation.accepted) == generation.timings.num_prediction_accepted


def test_the_prediction_comes_before_other_sources() -> None:
    target = FakeTarget(period=0, context_size=900, max_batch=128)
    expected = target.expected([5, 6, 7], 200)
    engine = Engine(target, Garbage(97, broken=False), policy=AutoPolicy(fixed=8))
    generation = answer(engine, [5, 6, 7], expected, 200)
    assert generation.timings.num_prediction_accepted >= 170
    assert generation.timings.num_draft_tokens <= 200


def test_a_partly_right_prediction_is_used_where_it_is_right() -> None:
    target = FakeTarget(period=0, context_size=900, max_batch=128)
    prompt = [5, 6, 7]
    expected = target.expected(prompt, 300)
    for place in (0, 1, 50, 299):
        edited = [*expected[:place], 3, 4, *expected[place + 4 :]]
        generation = answer(Engine(target, None), prompt, edited, 300)
        assert generation.token_ids == expected
        assert generation.timings.num_prediction_accepted >= 240
        timings = generation.timings
        assert timings.num_draft_tokens == (
            timings.num_prediction_accepted + timings.num_prediction_rejected
        )


def test_a_wrong_prediction_costs_little() -> None:
    target = FakeTarget(period=0, context_size=900, max_batch=128)
    wrong = np.random.default_rng(1).integers(1, 97, 400).tolist()
    generation = answer(Engine(target, None), [5, 6, 7], wrong, 400)
    assert generation.token_ids == target.expected([5, 6, 7], 400)
    assert generation.timings.num_prediction_rejected <= 64 + 16  # one long draft, then short ones


def test_an_answer_that_repeats_itself_is_no_prediction() -> None:
    target = FakeTarget(period=7, context_size=900, max_batch=128)
    engine = Engine(target, None, policy=AutoPolicy(fixed=DEFAULT_MAX_DRAFT))
    generation = answer(engine, [5, 6, 7], [90, 91, 92, 93, 94], 200)
    assert generation.token_ids == target.expected([5, 6, 7], 200)
    assert generation.timings.num_prediction_accepted == 0


def test_right_tokens_behind_a_stop_text_are_none_of_the_answer() -> None:
    target = FakeTarget(period=0, context_size=900, max_batch=128)
    expected = target.expected([5, 6, 7], 100)
    stop = target.piece(expected[40], False).decode()
    request = Request(
        prompt_ids=int32([5, 6, 7]),
        max_tokens=100,
        prediction_ids=int32(expected),
        stop=(stop,),
    )
    engine = Engine(target, None, policy=AutoPolicy(fixed=DEFAULT_MAX_DRAFT))
    (generation,) = engine.generate([request])
    timings = generation.timings
    assert generation.finish_reason == "stop"
    assert (
        timings.num_prediction_accepted == timings.num_accepted_tokens == sum(generation.accepted)
    )
    assert sum(generation.accepted) <= generation.num_tokens <= 41


@pytest.mark.parametrize("prediction", [[-1, 4], [10**6] * 9, [0] * 9, [96]])
def test_predictions_of_strange_tokens_are_harmless(prediction: list[int]) -> None:
    target = FakeTarget()
    generation = answer(Engine(target, None), [1, 2, 3], prediction)
    assert generation.token_ids == target.expected([1, 2, 3], 30)


@given(data=st.data(), prompt=st.lists(st.integers(1, 4), min_size=1, max_size=6))
@settings(SETTINGS)
def test_any_prediction_gives_the_same_answer(data: st.DataObject, prompt: list[int]) -> None:
    target = FakeTarget(vocab_size=5, period=data.draw(st.sampled_from([0, 2, 3])))
    engine = Engine(target, "ngram-simple", params={"ngram-simple": {"size_n": 2}})
    for _ in range(3):
        prediction = data.draw(st.lists(st.integers(0, 6), max_size=30))
        generation = answer(engine, prompt, prediction)
        assert generation.token_ids == target.expected(prompt, 30)


def test_a_prediction_serves_its_own_request_only() -> None:
    target = FakeTarget(period=0)
    engine = Engine(target, None)
    prompt = [5, 6, 7]
    request = Request(prompt_ids=int32(prompt), prediction_ids=int32(target.expected(prompt, 99)))
    gone = engine.submit(request)
    engine.step()
    gone.cancel()
    assert answer(engine, prompt, []).timings.num_draft_tokens == 0
    assert answer(engine, prompt, target.expected(prompt, 30)).timings.num_prediction_accepted > 20
