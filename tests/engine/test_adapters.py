"""Requests with different adapters: never in one batch or from one cache, none waits forever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fake_target import FakeTarget
from ngramspec._native.engine.slot import Slot
from ngramspec.engine import Engine, Generation, Request, Sampling, Speculation
from ngramspec.engine.request import Adapters
from ngramspec.engine.sequences import choose_slot
from ngramspec.errors import InputError

GREEDY = Sampling(temperature=0.0)
SETTINGS: tuple[Adapters, ...] = ((), ((0, 1.0),), ((0, 0.5),), ((0, 1.0), (1, -2.0)))


def request_of(adapters: Adapters = (), first: int = 5, **named: Any) -> Request:
    prompt = np.array([first, 7, 9, 11] * 4, dtype=np.int32)
    return Request(
        **{"prompt_ids": prompt, "max_tokens": 8, "sampling": GREEDY, "adapters": adapters, **named}
    )


def said_alone(request: Request) -> list[int]:
    """Return what a fresh engine says to a request alone, without drafts."""
    engine = Engine(FakeTarget(), None, slots=1)
    (answer,) = engine.generate([request])
    return [int(token) for token in answer.token_ids]


@given(st.lists(st.tuples(st.sampled_from(SETTINGS), st.integers(1, 3)), min_size=1, max_size=12))
def test_texts_are_those_of_each_request_alone(asked: Sequence[tuple[Adapters, int]]) -> None:
    engine = Engine(FakeTarget(), "ngram-simple,ngram-mod", slots=4)
    requests = [request_of(adapters, first) for adapters, first in asked]
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        assert answer.error is None
        assert [int(token) for token in answer.token_ids] == said_alone(request)


def test_equal_adapters_share_a_batch_and_a_cache() -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2)
    for adapters in SETTINGS:
        target.batches.clear()
        first, second = engine.generate([request_of(adapters, 5), request_of(adapters, 6)])
        assert first.error is second.error is None
        assert max(target.batches[1:]) == 2
        (again,) = engine.generate([request_of(adapters, 5)])
        assert again.timings.num_cached == 15
    (other,) = engine.generate([request_of((), 5)])
    assert other.timings.num_cached == 0  # both slots hold what adapters computed


def test_the_next_request_in_turn_gets_its_adapters_soon() -> None:
    engine = Engine(FakeTarget(), None, slots=2)
    running = [engine.submit(request_of((), max_tokens=40))]
    other = engine.submit(request_of(SETTINGS[1], max_tokens=4))
    for _ in range(30):
        running.append(engine.submit(request_of((), max_tokens=2)))
    seen: list[Generation] = []
    while engine.busy:
        engine.step()
        seen += [one for one in (other, *running) if one.finish_reason and one not in seen]
    assert seen[:2] == [running[0], other]


def test_a_request_for_another_slot_does_not_block() -> None:
    engine = Engine(FakeTarget(), None, slots=2)
    engine.submit(request_of((), max_tokens=60, slot=0))
    engine.step()
    waiting = engine.submit(request_of(SETTINGS[1], slot=0))
    free = engine.submit(request_of((), max_tokens=2, slot=1))
    for _ in range(5):
        engine.step()
    assert (free.finish_reason, waiting.finish_reason) == ("length", None)
    while engine.busy:
        engine.step()
    assert waiting.finish_reason == "length"


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        (((-1, 1.0),), "numbers from 0 on"),
        (((1, 1.0), (0, 1.0)), "in the order of numbers"),
        (((1, 1.0), (1, 2.0)), "each once"),
        (((0, 0.0),), "finite and not 0"),
        (((0, float("nan")),), "finite and not 0"),
        (((0, True),), "finite and not 0"),
        (((0, 10**400),), "finite and not 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(adapters: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        request_of(adapters)


def test_lists_and_whole_numbers_are_the_same_adapters() -> None:
    assert request_of([(0, 1), [1, 2]]).adapters == ((0, 1.0), (1, 2.0))  # type: ignore[arg-type]
    assert request_of([]).adapters == ()  # type: ignore[arg-type]


def test_an_adapter_that_is_not_loaded_is_refused() -> None:
    engine = Engine(FakeTarget(), None, slots=1)
    with pytest.raises(InputError, match="there is no adapter 2; 2 are loaded"):
        engine.submit(request_of(((2, 1.0),)))


def test_an_adapter_that_fails_ends_its_request_only() -> None:
    class Failing(FakeTarget):
        def adapt(self, adapters: Adapters) -> None:
            if adapters:
                raise InputError("no")

    engine = Engine(Failing(), None, slots=2)
    bad, good = engine.generate([request_of(SETTINGS[1]), request_of()])
    assert isinstance(bad.error, InputError)
    assert good.error is None


def test_a_slot_is_reused_with_the_same_adapters_and_namespace_only() -> None:
    names = ("", "a")
    for held in SETTINGS:
        slot = Slot(0, 400, 90)
        slot.tokens[:16] = request_of().prompt_ids
        slot.length = slot.num_past = 16
        slot.namespace, slot.adapters = "a", held
        for adapters in SETTINGS:
            for name in names:
                request = request_of(adapters, speculation=Speculation(namespace=name))
                reused = choose_slot([slot], request)[1]
                assert (reused > 0) == (adapters == held and name == "a")
