"""Broken drafters, callbacks, policies and targets: what they cost, and what they must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import END, Failing, FakeTarget, Garbage, Oracle
from ngramspec._native.engine.decode import Sampler
from ngramspec.engine import (
    AutoPolicy,
    Chunk,
    DraftSource,
    Engine,
    Generation,
    Request,
    Sampling,
    Speculation,
)
from ngramspec.errors import BackendError, InputError

pytestmark = pytest.mark.usefixtures("still")

Submit = Callable[..., Generation]


class Always(DraftSource):
    """A drafter that returns the same object every time."""

    name = "always"

    def __init__(self, same: Any) -> None:
        self.same = same
        self.proposals = 0

    def draft(self, slot: int, limit: int) -> Any:
        self.proposals += 1
        return self.same


def run(engine: Engine, *prompts: list[int], most: int = 30) -> list[list[int]]:
    answers = engine.generate([Request(prompt_ids=int32(p), max_tokens=most) for p in prompts])
    return [one.token_ids for one in answers]


NO_DRAFTS = {
    "nothing": None,
    "a number": 7,
    "a token that is no array": np.int32(3),
    "a text": "text",
    "int64": np.array([3, 4]),
    "floats": [1.5],
    "two dimensions": int32([1, 2]).reshape(1, 2),
    "strided": int32([1, 2, 3, 4])[::2],
    "negative": int32([-1, 4]),
    "too large for int32": [2**40],
    "a set": {3},
}


@pytest.mark.parametrize("name", NO_DRAFTS)
def test_what_is_no_draft_switches_the_source_off_for_the_request(name: str) -> None:
    target, drafter = FakeTarget(), Always(NO_DRAFTS[name])
    engine = Engine(target, drafter)
    assert run(engine, [1, 2], [3]) == [target.expected([1, 2], 30), target.expected([3], 30)]
    assert drafter.proposals <= 4  # once, and once more alone, per request
    assert engine.source_failures() == {"always": 2}


@pytest.mark.parametrize("kind", [list, tuple, int32])
def test_drafts_may_be_lists_or_arrays(kind: Any) -> None:
    target = FakeTarget(period=1)  # one token over and over
    engine = Engine(target, Always(kind([8, 8, 8])), policy=AutoPolicy(fixed=3))
    assert run(engine, [1]) == [[8] * 30]
    assert engine.stats().num_accepted_tokens >= 20
    assert engine.source_failures() == {}


@pytest.mark.parametrize("bad", [END, 97, 2**31 - 1])
def test_drafts_are_cut_before_end_tokens_and_unknown_ids(bad: int) -> None:
    target = FakeTarget(period=1)
    engine = Engine(target, Always(int32([8, bad, 8])), policy=AutoPolicy(fixed=3))
    assert run(engine, [1]) == [[8] * 30]
    assert max(target.batches) == 2  # the token before the draft and one of the draft
    assert engine.source_failures() == {}


def test_drafts_of_one_buffer_do_not_change_while_they_are_verified() -> None:
    target = FakeTarget(period=3)
    for seed in range(10):
        engine = Engine(
            target, Garbage(97, seed, broken=False), slots=4, policy=AutoPolicy(fixed=4)
        )
        prompts = [[1 + i, seed + 1] for i in range(4)]
        assert run(engine, *prompts) == [target.expected(prompt, 30) for prompt in prompts]
        assert engine.source_failures() == {}


@pytest.mark.parametrize("method", Failing.METHODS)
def test_a_source_that_raises_is_off_for_that_request_only(method: str) -> None:
    target = FakeTarget()
    oracle = Oracle(target)
    engine = Engine(target, Failing(oracle, 1.0, only=[method]))
    assert run(engine, [1], [2]) == [target.expected([1], 30), target.expected([2], 30)]
    assert engine.source_failures() == {"failing": 2}
    assert (oracle.begun, engine.stats().num_drafts > 0) == {
        "begin": (0, False),
        "draft": (2, False),
        "accept": (2, False),
        "end": (2, True),
    }[method]


def test_a_source_that_fails_for_one_slot_still_drafts_for_the_others() -> None:
    target = FakeTarget()

    class Picky(Oracle):
        def draft(self, slot: int, limit: int) -> np.ndarray:
            if slot == 1:
                raise ValueError("not slot 1")
            return super().draft(slot, limit)

    engine = Engine(target, Picky(target), slots=3)
    answers = engine.generate([Request(prompt_ids=int32([i + 1]), max_tokens=20) for i in range(3)])
    assert [one.token_ids for one in answers] == [target.expected([i + 1], 20) for i in range(3)]
    assert [one.timings.num_accepted_tokens > 0 for one in answers] == [True, False, True]


def test_a_failing_first_source_leaves_the_second_one_on() -> None:
    target = FakeTarget()
    second = Oracle(target)
    second.name = "second"
    engine = Engine(target, Always(None), draft_model=second)
    assert run(engine, [1]) == [target.expected([1], 30)]
    assert engine.stats().num_accepted_tokens > 15


def test_a_prompt_that_no_slot_can_read_ends_its_own_request_only() -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2)
    prompts = [int32([1 + i]) for i in range(4)]
    answers = [engine.submit(Request(prompt_ids=ids, max_tokens=5)) for ids in prompts]
    engine.step()  # the first two run
    prompts[2][0] = -1  # the caller's array, which is not copied
    while engine.step():
        pass
    assert [one.finish_reason for one in answers] == ["length", "length", "error", "length"]
    assert isinstance(answers[2].error, InputError)
    assert [one.token_ids for one in (answers[0], answers[1], answers[3])] == [
        target.expected([token], 5) for token in (1, 2, 4)
    ]
    assert not engine.busy


@pytest.mark.parametrize("when", ["first", "last", "always"])
def test_a_callback_that_raises_ends_its_own_request_only(when: str) -> None:
    target = FakeTarget()
    engine = Engine(target, Oracle(target), slots=2)
    seen: list[Chunk] = []

    def broken(chunk: Chunk) -> None:
        seen.append(chunk)
        if when == "always" or (chunk.finish_reason is None) == (when == "first"):
            raise RuntimeError("the client is gone")

    bad = engine.submit(Request(prompt_ids=int32([1]), max_tokens=20), broken)
    good = engine.submit(Request(prompt_ids=int32([2]), max_tokens=20))
    while engine.step():
        pass
    assert good.token_ids == target.expected([2], 20)
    assert bad.finish_reason == ("length" if when == "last" else "cancelled")
    assert seen[-1].finish_reason == bad.finish_reason
    assert not engine.busy


def test_a_callback_may_submit_the_next_request() -> None:
    target = FakeTarget()
    engine = Engine(target, None)
    later: list[Generation] = []

    def go_on(chunk: Chunk) -> None:
        if chunk.finish_reason and len(later) < 3:
            later.append(engine.submit(Request(prompt_ids=int32([5]), max_tokens=4), go_on))

    engine.submit(Request(prompt_ids=int32([5]), max_tokens=4), go_on)
    while engine.step():
        pass
    assert [one.token_ids for one in later] == [target.expected([5], 4)] * 3


class Fragile(FakeTarget):
    """A target of which one method fails for one sequence, as often as it is told to."""

    def __init__(self, method: str, times: int, **options: Any) -> None:
        super().__init__(**options)
        self.method, self.times = method, times

    def broken(self, method: str, sequence: int) -> None:
        if method == self.method and sequence == 1 and self.times:
            self.times -= 1
            raise ValueError(f"{method} fails")

    def truncate(self, sequence: int, length: int) -> bool:
        self.broken("truncate", sequence)
        return super().truncate(sequence, length)

    def copy(self, source: int, sequence: int, length: int) -> None:
        self.broken("copy", sequence)
        super().copy(source, sequence, length)

    def save(self, sequence: int) -> Any:
        self.broken("save", sequence)
        return super().save(sequence)

    def restore(self, sequence: int, state: Any, length: int) -> bool:
        self.broken("restore", sequence)
        return super().restore(sequence, state, length)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("method", ["truncate", "copy", "save", "restore"])
def test_what_fails_for_one_sequence_ends_its_request_only(method: str, times: int) -> None:
    stateful = {"max_rollback": 0, "can_save": True, "min_copy": None}
    target = Fragile(method, 0, **(stateful if method in ("save", "restore") else {"min_copy": 1}))
    engine = Engine(target, Garbage(97, broken=False), slots=3, policy=AutoPolicy(fixed=4))
    target.times = times
    ended = []
    for number in range(5):
        prompts = [[1 + (number + i) % 3, 2, 3] for i in range(3)]  # slot 1 wants what slot 2 has
        requests = [
            Request(prompt_ids=int32(prompt), max_tokens=12, slot=i)
            for i, prompt in enumerate(prompts)
        ]
        answers = engine.generate(requests)
        for one, prompt in zip(answers, prompts, strict=True):
            ended.append(one.finish_reason)
            if one.finish_reason == "error":
                assert one.request.slot == 1
                assert str(one.error) == f"{method} fails"
            else:
                assert one.token_ids == target.expected(prompt, 12)
    assert 1 <= ended.count("error") <= times
    assert ended[-3:] == ["length"] * 3
    assert not engine.busy


def test_a_request_whose_logprobs_fail_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget()
    engine = Engine(target, None, slots=2)
    asked = Request(prompt_ids=int32([1]), max_tokens=9, logprobs=2)
    answers = [engine.submit(asked), engine.submit(Request(prompt_ids=int32([2]), max_tokens=9))]

    def failing(*_: Any) -> None:
        raise ArithmeticError("no logarithm")

    monkeypatch.setattr(engine._stepper._emission, "_add_logprobs", failing)
    while engine.step():
        pass
    assert [one.finish_reason for one in answers] == ["error", "length"]
    assert isinstance(answers[0].error, ArithmeticError)
    assert answers[1].token_ids == target.expected([2], 9)


@pytest.mark.parametrize("method", ["truncate", "copy"])
def test_a_cancel_while_a_request_starts_is_seen(method: str) -> None:
    target = FakeTarget(min_copy=1)
    engine = Engine(target, None, slots=2)
    engine.generate([Request(prompt_ids=int32([1, 2, 3, 4]), max_tokens=3, slot=0)])
    engine.generate([Request(prompt_ids=int32([9, 9]), max_tokens=3, slot=1)])
    original = getattr(target, method)
    answers: list[Generation] = []

    def cancelling(*arguments: Any) -> Any:
        answers[0].cancel()
        return original(*arguments)

    setattr(target, method, cancelling)
    answers.append(engine.submit(Request(prompt_ids=int32([1, 2, 3, 4]), max_tokens=50, slot=1)))
    while engine.step():
        pass
    assert answers[0].finish_reason == "cancelled"
    assert answers[0].num_tokens <= 1


@pytest.mark.parametrize("fields", [{"max_tokens": 1 << 63}, {"slot": 1 << 40}])
def test_numbers_that_no_engine_holds_are_refused_when_submitted(fields: dict[str, Any]) -> None:
    engine = Engine(FakeTarget(), None)
    with pytest.raises(InputError):
        engine.submit(Request(prompt_ids=int32([1]), **fields))
    with pytest.raises(InputError):
        Speculation(max_draft=(1 << 63) - 1)
    assert engine.generate([Request(prompt_ids=int32([1]), max_tokens=3)])[0].num_tokens == 3


def test_a_failed_decode_ends_the_requests_of_its_batch() -> None:
    target = FakeTarget(sequences=3)
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=2))
    answers = [engine.submit(Request(prompt_ids=int32([i + 1]), max_tokens=20)) for i in range(3)]
    for _ in range(3):
        engine.step()
    target.fail_next = BackendError("out of order")
    assert engine.step()
    assert [one.finish_reason for one in answers] == ["error", "error", None]
    assert answers[0].error is answers[1].error is not None
    assert answers[0].token_ids == target.expected([1], 20)[: len(answers[0].token_ids)]
    assert target.held[:2] == [[], []]
    while engine.step():
        pass
    assert answers[2].token_ids == target.expected([3], 20)
    assert engine.stats().finished == {"error": 2, "length": 1}
    assert engine.stats().num_preempted == 0


def test_a_full_cache_empties_idle_slots_first() -> None:
    target = FakeTarget(cells=40)
    engine = Engine(target, None, slots=2)
    engine.generate([Request(prompt_ids=int32([1, 2, 3]), max_tokens=20, slot=0)])
    held = len(target.held[0])
    answer = engine.generate([Request(prompt_ids=int32([9] * 10), max_tokens=20, slot=1)])[0]
    assert (held, target.held[0]) == (22, [])
    assert answer.token_ids == target.expected([9] * 10, 20)


def test_drafts_that_do_not_fit_the_cache_cost_no_request() -> None:
    requests = [Request(prompt_ids=int32([i + 1]), max_tokens=(22, 10)[i]) for i in range(2)]
    for drafter in (None, Garbage(97, broken=False)):
        target = FakeTarget(cells=24)
        engine = Engine(target, drafter, slots=2, policy=AutoPolicy(fixed=8))
        answers = engine.generate(requests)
        assert [one.token_ids for one in answers] == [
            target.expected([1], 22),
            target.expected([2], 10),
        ]
        assert engine.stats().num_preempted == 0
        assert engine.stats().num_drafts >= 5 * (drafter is not None)


def test_drafts_that_do_not_fit_the_cache_leave_idle_slots_alone() -> None:
    target = FakeTarget(cells=50, end_every=31)
    engine = Engine(target, Garbage(97, broken=False), slots=2, policy=AutoPolicy(fixed=40))
    prompt = next(p for p in range(1, 97) if len(target.expected([p] * 10, 60)) in range(10, 25))
    off = Speculation(enabled=False)
    first = Request(prompt_ids=int32([1, 2, 3]), max_tokens=9, slot=0, speculation=off)
    answers = engine.generate([first, Request(prompt_ids=int32([prompt] * 10), slot=1)])
    assert answers[1].token_ids == target.expected([prompt] * 10, 60)
    assert len(target.held[0]) == 2 + len(answers[0].token_ids) > 0
    assert engine.stats().num_drafts > 0


def test_what_is_no_source_is_refused() -> None:
    nameless = Always(int32([1, 2]))
    nameless.name = 7  # type: ignore[assignment]
    for drafter, kind in ((nameless, "Always"), (object(), "object"), (7, "int")):
        with pytest.raises(InputError, match=f"a named DraftSource, got {kind}"):
            Engine(FakeTarget(), drafter)


def test_no_possible_token_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget()
    oracle = Oracle(target)
    engine = Engine(target, oracle)
    with monkeypatch.context() as patched:
        patched.setattr(target, "sampler", lambda *_: Sampler())  # it finds none possible
        answer = engine.generate([Request(prompt_ids=int32([1]), max_tokens=20)])[0]
    assert (answer.token_ids, answer.finish_reason, answer.text) == ([], "error", "")
    assert isinstance(answer.error, InputError)
    assert "no token possible" in str(answer.error)
    assert (oracle.begun, oracle.ended, oracle.complaints) == (oracle.ended, oracle.begun, [])
    assert engine.source_failures() == {}
    assert run(engine, [1, 2]) == [target.expected([1, 2], 30)]


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_a_grammar_may_end_in_the_middle_of_a_draft(
    model_path: Callable[[str], str], extra: int
) -> None:
    from ngramspec.llamacpp import LlamaModel, LlamaTarget

    text = "one two three"
    sampling = Sampling(temperature=0, grammar=f'root ::= "{text}"', ignore_eos=True)
    with LlamaModel(model_path("embedded")) as model, LlamaTarget(model, slots=1) as target:
        prompt = model.tokenize("Count: ")
        plain = Engine(target, None)
        asked = {"prompt_ids": prompt, "max_tokens": 40, "sampling": sampling}
        expected = plain.generate([Request(**asked)])[0]
        tokens = expected.token_ids
        assert (expected.text, expected.finish_reason) == (text, "stop")
        drafter = Always(int32(tokens[1:] + [tokens[0]] * extra))
        engine = Engine(target, drafter, policy=AutoPolicy(fixed=64))
        answer = engine.generate([Request(**asked)])[0]
        assert (answer.token_ids, answer.text, answer.finish_reason) == (tokens, text, "stop")
        assert sum(answer.accepted) == len(tokens) - 1 > 1
        slot = engine.slots()[0]
        assert slot.num_past == prompt.size + len(tokens)
