"""Request, Sampling and submit: every bound, every documented error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.engine import Engine, Request, Sampling, Speculation
from ngramspec.engine.request import MAX_LOGPROBS
from ngramspec.engine.sampling import BOUNDS
from ngramspec.errors import BackendError, CapacityError, InputError, StateError


def request(*ids: int, **fields: Any) -> Request:
    return Request(prompt_ids=int32(list(ids or (1,))), **fields)


@pytest.mark.parametrize("name", BOUNDS)
def test_sampling_takes_its_bounds_and_nothing_beyond(name: str) -> None:
    low, high = BOUNDS[name]
    for value in (low, high):
        assert getattr(Sampling(**{name: value}), name) == value
    beyond: list[Any] = [low - 1, high + 1, float("nan"), float("inf"), None, "1", True, [low]]
    for value in beyond:
        with pytest.raises(InputError, match=f"^{name} must be in {low}..{high}, got "):
            Sampling(**{name: value})


def test_every_number_of_sampling_has_bounds() -> None:
    numbers = {
        name: value
        for name, value in vars(Sampling()).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    assert set(numbers) == set(BOUNDS)
    for name, value in numbers.items():
        assert isinstance(value, int) == isinstance(BOUNDS[name][0], int)


@pytest.mark.parametrize("name", [n for n, (low, _) in BOUNDS.items() if isinstance(low, int)])
def test_whole_numbers_are_not_given_as_fractions(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be in"):
        Sampling(**{name: 1.0})
    assert type(getattr(Sampling(**{name: 1}), name)) is int


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1.0, "1", True])
def test_seeds_have_32_bits(seed: Any) -> None:
    with pytest.raises(InputError, match=r"seed must be in 0\.\.4294967295"):
        Sampling(seed=seed)
    assert (Sampling(seed=0).seed, Sampling(seed=(1 << 32) - 1).seed) == (0, (1 << 32) - 1)


@pytest.mark.parametrize("name", ["samplers", "dry_sequence_breakers", "logit_bias"])
@pytest.mark.parametrize("value", [None, 5, "top_k", [["top_k"]], [(3, 1.0)]])
def test_what_is_no_list_or_mapping_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be "):
        Sampling(**{name: value})


def test_breakers_of_a_list_can_be_hashed_as_those_of_a_tuple() -> None:
    listed: Any = ["\n", ":"]
    breakers = Sampling(dry_sequence_breakers=listed).dry_sequence_breakers
    assert hash(breakers) == hash(("\n", ":"))


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.1},
        {"mirostat": 2},
        {"grammar": 'root ::= "a"'},
        {"logit_bias": {3: 1.0}},
        {"ignore_eos": True},
        {"repeat_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"dry_multiplier": 0.5},
    ],
)
def test_greedy_means_the_likeliest_token_as_it_stands(fields: dict[str, Any]) -> None:
    assert Sampling(temperature=0).greedy
    assert Sampling(temperature=0, top_k=3, min_p=0.5, seed=4).greedy
    assert not Sampling(**{"temperature": 0, **fields}).greedy


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt_ids": [1, 2]}, "prompt_ids must be an int32 array"),
    ({"prompt_ids": np.array([1, 2])}, "prompt_ids must be an int32 array"),
    ({"prompt_ids": int32([[1]])}, "prompt_ids must be an int32 array"),  # type: ignore[list-item]
    ({"prompt_ids": None}, "prompt_ids must be an int32 array"),
    ({"prediction_ids": [1]}, "prediction_ids must be an int32 array"),
    ({"prompt_ids": int32([])}, "the prompt is empty"),
    ({"max_tokens": -2}, r"max_tokens must be in -1\.\.2147483647, got -2"),
    ({"max_tokens": 1.5}, r"max_tokens must be in -1\.\.2147483647, got 1.5"),
    ({"max_tokens": "5"}, r"max_tokens must be in -1\.\.2147483647, got '5'"),
    ({"max_tokens": None}, r"max_tokens must be in -1\.\.2147483647, got None"),
    ({"slot": -2}, r"slot must be in -1\.\.2147483647"),
    ({"max_tokens": 1 << 31}, r"max_tokens must be in -1\.\.2147483647, got 2147483648"),
    ({"max_tokens": 10**310}, "max_tokens must be in"),
    ({"slot": 1 << 63}, "slot must be in"),
    ({"slot": "0"}, r"slot must be in -1\.\.2147483647"),
    ({"logprobs": -1}, "logprobs must be in 0..1000, got -1"),
    ({"logprobs": MAX_LOGPROBS + 1}, "logprobs must be in 0..1000"),
    ({"logprobs": True}, "logprobs must be in 0..1000"),
    ({"logprobs": "3"}, "logprobs must be in 0..1000"),
    (
        {"prompt_ids": np.ones(262, np.int32), "prompt_logprobs": 1000},
        "prompt_logprobs must be less, or the prompt shorter: with 1000 it can have 261 tokens, "
        "but it has 262",
    ),
    ({"stop": ("a", "")}, "a stop text must not be empty"),
    ({"stop": "ab"}, "stop must be a tuple of texts, got 'ab'"),
    ({"stop": (1,)}, "stop must be a tuple of texts"),
    ({"stop": None}, "stop must be a tuple of texts, got None"),
    ({"sampling": {"temperature": 0}}, "sampling must be a Sampling, got {'temperature': 0}"),
    ({"speculation": False}, "speculation must be a Speculation, got False"),
    ({"adapters": None}, "adapters must be a tuple of numbers and scales, got None"),
    ({"adapters": (0,)}, r"adapters must be a tuple of numbers and scales, got \(0,\)"),
    ({"format": "json"}, "format must be a ChatFormat, got 'json'"),
    ({"timeout": 0}, "timeout must be above 0 seconds, and finite, got 0"),
    ({"timeout": -1.0}, "timeout must be above 0 seconds"),
    ({"timeout": float("nan")}, "timeout must be above 0 seconds"),
    ({"stop": ("a",) * 129}, "stop must have at most 128 texts, got 129"),
    ({"stop": ("a" * 4000, "é" * 4000)}, "stop must have at most 8192 bytes together, got 12000"),
    ({"stop": ("\ud800",)}, "stop must hold valid Unicode"),
    ({"timeout": float("inf")}, "timeout must be above 0 seconds, and finite, got inf"),
    ({"timeout": "9"}, "timeout must be above 0 seconds, and finite, got '9'"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[repr(fields)[:60] for fields, _ in BAD])
def test_bad_requests_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        Request(**{"prompt_ids": int32([1]), **fields})
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_draft": -1}, r"max_draft must be in 0\.\.2147483647, got -1"),
        ({"max_draft": 2.0}, r"max_draft must be in 0\.\.2147483647"),
        ({"max_draft": "3"}, r"max_draft must be in 0\.\.2147483647"),
        ({"max_draft": 1 << 63}, r"max_draft must be in 0\.\.2147483647"),
        ({"min_draft": -1}, r"min_draft must be in 0\.\.2147483647, got -1"),
        ({"min_draft": True}, r"min_draft must be in 0\.\.2147483647"),
        ({"p_min": 1.5}, r"p_min must be a number in 0\.\.1, got 1\.5"),
        ({"p_min": "x"}, r"p_min must be a number in 0\.\.1"),
        ({"namespace": None}, "namespace must be a text, got None"),
        ({"params": []}, "params must be a mapping"),
        ({"types": 5}, "types must be a tuple of drafter names, got 5"),
        ({"types": (5,)}, "types must be a tuple of drafter names"),
    ],
)
def test_bad_settings_of_drafts_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        Speculation(**fields)
    assert isinstance(raised.value, ValueError)


def test_good_requests_are_taken_as_they_are() -> None:
    asked = request(1, 2, max_tokens=0, logprobs=MAX_LOGPROBS, stop=("a",), timeout=0.5, slot=3)
    assert (asked.max_tokens, asked.logprobs, asked.stop, asked.timeout) == (0, 1000, ("a",), 0.5)
    assert len(asked.id) == 32
    assert asked.id != request(1, 2).id
    assert request().prediction_ids.size == 0


def test_ids_may_be_every_second_of_an_array_and_are_not_copied_otherwise() -> None:
    target, ids = FakeTarget(), int32([5, 1, 6, 1, 7, 1])
    asked = Request(prompt_ids=ids[::2], prediction_ids=ids[::-1], max_tokens=5)
    assert asked.prediction_ids.tolist() == [1, 7, 1, 6, 1, 5]
    (answer,) = Engine(target, "ngram-simple").generate([asked])
    assert answer.token_ids == target.expected([5, 6, 7], 5)
    assert Request(prompt_ids=ids).prompt_ids is ids


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            request(*[1] * 32),
            "the prompt has 32 tokens, the context of a slot 32: shorten it, or set more context "
            r"\(context_size; -c of a command\)",
        ),
        (request(*[1] * 99), "the prompt has 99 tokens"),
        (request(1, -1), r"token ids of the prompt must be in 0\.\.96"),
        (request(97), r"token ids of the prompt must be in 0\.\.96"),
        (request(slot=2), r"slot must be in -1\.\.1, got 2"),
        (request(speculation=Speculation(types=("ngram-nod",))), "unknown drafter"),
        (request(speculation=Speculation(params={"ngram-mod": {"pool": 1}})), "cannot set 'pool'"),
    ],
)
def test_submit_refuses_what_does_not_fit_the_engine(asked: Request, message: str) -> None:
    engine = Engine(FakeTarget(context_size=32), "ngram-simple", slots=2)
    with pytest.raises(InputError, match=message):
        engine.submit(asked)
    assert (engine.stats().num_requests, engine.queue_length, engine.busy) == (0, 0, False)
    assert not engine.step()


def test_submit_passes_on_what_the_sampler_refuses() -> None:
    class Strict(FakeTarget):
        def sampler(self, sampling: Sampling, seed: int) -> Any:
            raise InputError("the grammar has no root")

    engine = Engine(Strict(), None)
    with pytest.raises(InputError, match="no root"):
        engine.submit(request())
    assert (engine.queue_length, engine.busy, engine.stats().num_requests) == (0, False, 0)


def test_a_full_queue_refuses_until_there_is_room() -> None:
    engine = Engine(FakeTarget(), None, slots=2, max_queue=3)
    answers = [engine.submit(request(max_tokens=2)) for _ in range(5)]  # two run, three wait
    with pytest.raises(CapacityError, match="5 requests are waiting already"):
        engine.submit(request())
    engine.step()
    assert engine.queue_length == 3
    with pytest.raises(CapacityError, match="3 requests are waiting already"):
        engine.submit(request())
    engine.step()
    answers.append(engine.submit(request(max_tokens=2)))
    while engine.step():
        pass
    assert [one.finish_reason for one in answers] == ["length"] * 6
    assert engine.stats().num_requests == 6


def test_without_a_queue_only_idle_slots_take_requests() -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2, max_queue=0)
    for _ in range(2):
        engine.submit(request())
    with pytest.raises(CapacityError):
        engine.submit(request())
    engine.close()
    engine = Engine(target, None, slots=2, max_queue=0)
    target.batches.clear()
    answers = engine.generate([request(i + 1, max_tokens=9) for i in range(4)])
    assert [one.token_ids for one in answers] == [target.expected([i + 1], 9) for i in range(4)]
    assert len(target.batches) == 18  # two at a time


def test_a_closed_engine_takes_nothing_and_cancels_the_rest() -> None:
    engine = Engine(FakeTarget(), None)
    answers = [engine.submit(request()) for _ in range(2)]
    engine.step()
    engine.refuse()
    with pytest.raises(StateError, match="the engine is closed"):
        engine.submit(request())
    assert engine.step()  # those that are there go on
    engine.close()
    assert [one.finish_reason for one in answers] == ["cancelled"] * 2
    assert not engine.step()
    assert engine.stats().finished == {"cancelled": 2}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"slots": 0}, InputError, r"slots must be in 1\.\.4, got 0"),
        ({"slots": 5}, InputError, r"slots must be in 1\.\.4, got 5"),
        ({"max_queue": -1}, InputError, "max_queue must be >= 0"),
        ({"exact": True, "target": {"exact_batch": 0}}, BackendError, "no setting is known"),
        ({"slots": 4, "target": {"max_batch": 3}}, InputError, "4 slots need batches of 4 tokens"),
        (
            {"slots": 4, "exact": True, "target": {"exact_batch": 3}},
            InputError,
            "4 slots need batches of 4 tokens, the target allows 3",
        ),
    ],
)
def test_an_engine_that_cannot_run_is_not_made(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    target = FakeTarget(**fields.pop("target", {}))
    with pytest.raises(error, match=message):
        Engine(target, None, **fields)
    assert target.batches == []


def test_a_request_that_fails_to_submit_takes_those_of_its_call_with_it() -> None:
    engine = Engine(FakeTarget(), None)
    with pytest.raises(InputError, match="token ids"):
        engine.generate([request(5), request(6), request(97)])
    assert not engine.step()
    assert engine.stats().finished == {"cancelled": 2}
    assert engine.generate([request(5, max_tokens=3)])[0].finish_reason == "length"
