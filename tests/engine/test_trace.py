"""Decisions on drafts: each pass of each slot once, with what was offered, sent and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec._native.engine.trace import DecisionTrace
from ngramspec.engine import AutoPolicy, Engine, Request, Speculation

pytestmark = pytest.mark.usefixtures("still")


def traced(shadow: bool, slots: int = 1, **options: Any) -> tuple[Engine, list[Any], list[Any]]:
    """Answer six requests; return their engine, what was decided, and the texts."""
    target = FakeTarget(**options)
    engine = Engine(target, "ngram-map-k,suffix", slots=slots, policy=AutoPolicy(20, shadow=shadow))
    trace = DecisionTrace()
    engine.trace_to(trace)
    asked = [
        Request(
            prompt_ids=np.array([3 + i, *range(1, 9)], np.int32), max_tokens=50, cache_prompt=False
        )
        for i in range(6)
    ]
    generations = engine.generate(asked)
    texts = [[*one.request.prompt_ids.tolist(), *one.token_ids] for one in generations]
    assert trace.num_dropped == 0
    decisions = list(trace.drain())
    assert list(trace.drain()) == []
    return engine, decisions, texts


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("options", [{"period": 11}, {"forks": 3}])
def test_decisions_add_up_to_what_the_engine_counts(slots: int, options: dict[str, int]) -> None:
    engine, decisions, texts = traced(False, slots, **options)
    stats = engine.stats()
    assert len(decisions) == stats.num_slot_steps - len(texts)
    assert sum(one["sent"] for one in decisions) == stats.num_draft_tokens > 0
    assert sum(one["accepted"] for one in decisions) == stats.num_accepted_tokens > 0
    assert not any(one["shadow"] for one in decisions)
    for number, text in enumerate(texts):
        own = [one for one in decisions if one["request"] == number]
        place = own[0]["position"]
        assert place == 10  # the prompt's nine and the first token
        for one in own:
            assert one["position"] == place
            place += len(one["emitted_ids"])
            assert text[one["position"] : place] == one["emitted_ids"]
        assert place == len(text)


@pytest.mark.parametrize("options", [{"period": 11}, {"forks": 3}])
def test_offers_have_claims_and_links(options: dict[str, int]) -> None:
    _, decisions, _ = traced(False, **options)
    branched = 0
    for one in decisions:
        assert one["drafters"] == "ngram-map-k,suffix"
        offers = {offer["source"]: offer for offer in one["offers"]}
        assert (one["sent"] > 0) == (one["source"] is not None)
        assert one["source"] is None or one["sent"] <= len(offers[one["source"]]["token_ids"])
        for offer in offers.values():
            assert len(offer["claims"]) == len(offer["token_ids"]) > 0
            assert all(0.0 <= claim <= 1.0 for claim in offer["claims"])
            parents = offer.get("parents", range(-1, len(offer["claims"]) - 1))
            assert all(-1 <= parent < i for i, parent in enumerate(parents))
            branched += list(parents) != list(range(-1, len(offer["claims"]) - 1))
    assert (branched > 0) == ("forks" in options)


def test_what_is_only_judged_is_traced_by_drafter() -> None:
    engine, decisions, _ = traced(True)
    for shadow in engine.shadows():
        own = [one for one in decisions if one["drafters"] == shadow.name]
        assert len(own) == shadow.num_passes > 0
        assert all(one["shadow"] for one in own)
        assert sum(one["sent"] for one in own) == shadow.num_draft_tokens
        assert sum(one["accepted"] for one in own) == shadow.num_accepted_tokens
    assert len(engine.shadows()) == 3


def test_what_finds_no_room_is_counted() -> None:
    engine = Engine(FakeTarget(context_size=4096), policy=AutoPolicy(20))
    trace = DecisionTrace()
    engine.trace_to(trace)
    ask = Request(
        prompt_ids=np.arange(1, 9, dtype=np.int32),
        max_tokens=3000,
        speculation=Speculation(max_draft=1),
        cache_prompt=False,
    )
    while not trace.num_dropped:
        engine.generate([ask])
    num_decisions = len(list(trace.drain()))
    dropped = trace.num_dropped
    assert num_decisions > 1000
    engine.generate([ask])
    assert trace.num_dropped == dropped
    assert 0 < len(list(trace.drain())) < num_decisions


def test_decisions_that_come_while_others_are_drained_wait() -> None:
    engine = Engine(FakeTarget(), policy=AutoPolicy(20))
    trace = DecisionTrace()
    engine.trace_to(trace)
    ask = Request(prompt_ids=np.arange(1, 10, dtype=np.int32), max_tokens=40)
    engine.generate([ask])
    decisions, numbers = trace.drain(), [0]
    next(decisions)
    engine.generate([ask])
    numbers += [one["request"] for one in decisions]
    assert len(numbers) > 1
    assert set(numbers) == {0}
    assert {one["request"] for one in trace.drain()} == {1}


def test_requests_that_run_already_are_not_traced() -> None:
    engine = Engine(FakeTarget(), "ngram-map-k,suffix", slots=1, policy=AutoPolicy(20))
    running = Request(prompt_ids=np.arange(1, 10, dtype=np.int32), max_tokens=40)
    engine.submit(running)
    for _ in range(10):
        engine.step()
    trace = DecisionTrace()
    engine.trace_to(trace)
    while engine.step():
        assert list(trace.drain()) == []
    engine.generate([running])
    assert {one["request"] for one in trace.drain()} == {1}
