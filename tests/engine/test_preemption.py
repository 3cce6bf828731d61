"""A cache that is too small for all requests: they wait for one another, and all are answered."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Oracle
from helpers.machines import SETTINGS
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, Generation, Request, Sampling
from ngramspec.engine import preempted as preempted_module
from ngramspec.engine.sources.draft_model import DraftModel
from ngramspec.errors import BackendError, CapacityError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget

FLAT = CostTable(((1, 1.0), (64, 1.05)))  # further tokens cost next to nothing
SIZE = 256


def request(first: int, prompt: int, answer: int, **fields: Any) -> Request:
    ids = [first, *(1 + (first * i) % 96 for i in range(1, prompt))]
    return Request(prompt_ids=int32(ids), max_tokens=answer, **fields)


def crowd(count: int, chance: random.Random) -> list[Request]:
    return [
        request(1 + i, chance.choice([3, 20, 40]), chance.choice([180, 200])) for i in range(count)
    ]


def check(target: FakeTarget, answers: Sequence[Generation]) -> None:
    for answer in answers:
        assert answer.error is None, answer.error
        expected = target.expected(answer.request.prompt_ids.tolist(), answer.request.max_tokens)
        assert answer.token_ids == expected


def drafts_of(kind: str, target: FakeTarget, slots: int) -> dict[str, Any]:
    """Return what an engine drafts with."""
    policy = AutoPolicy(costs=FLAT)
    if kind == "draft model":
        small = FakeTarget(sequences=slots, period=target.period, context_size=SIZE)
        return {"drafter": "suffix", "draft_model": DraftModel(small, n_max=4), "policy": policy}
    if kind == "oracle":
        return {"drafter": Oracle(target, 0.7), "policy": AutoPolicy(fixed=8)}
    return {"drafter": "suffix" if kind == "branches" else None, "policy": policy}


@pytest.mark.parametrize("kind", ["none", "oracle", "branches", "draft model"])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("clients", [4, 8, 32])
def test_all_requests_of_a_crowd_are_answered(clients: int, copies: bool, kind: str) -> None:
    target = FakeTarget(
        sequences=8, cells=SIZE, context_size=SIZE, min_copy=8 if copies else None,
        shares_copies=copies, forks=4 if kind == "branches" else 0,
    )  # fmt: skip
    engine = Engine(target, slots=8, **drafts_of(kind, target, 8))
    check(target, engine.generate(crowd(clients, random.Random(clients))))
    stats = engine.stats()
    assert stats.num_preempted > 0
    assert stats.num_reread_tokens + stats.num_restored_tokens > 0
    assert stats.finished.get("error", 0) == 0


def test_the_newest_makes_room_and_the_oldest_comes_back_first() -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=4)
    answers = [engine.submit(request(1 + i, 5, 150)) for i in range(3)]
    most = 0
    while engine.step():
        out = {info.id for info in engine.slots() if info.state == "preempted"}
        running = {info.id for info in engine.slots() if info.state in ("prompt", "decode")}
        ages = {answer.slot: answer.number for answer in answers}
        assert (
            not out
            or not running
            or max(map(ages.__getitem__, running)) < min(map(ages.__getitem__, out))
        )
        most = max(most, len(out))
    assert most == 2
    check(target, answers)
    finished = sorted(answers, key=lambda answer: answer.timings.finished)
    assert [answer.number for answer in finished] == [0, 1, 2]


def test_nothing_new_starts_while_an_older_request_waits_for_room() -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=3)
    answers = [engine.submit(request(1 + i, 60, 150)) for i in range(2)]
    while engine.slots()[1].state != "preempted":
        assert engine.step()
    small = engine.submit(request(9, 2, 2))
    engine.submit(request(9, 2, 2)).cancel()  # so it looks again who can start
    while engine.slots()[1].state == "preempted":
        assert small.slot == -1
        assert engine.step()
    while engine.step():
        pass
    check(target, [*answers, small])


def test_a_stream_pauses_and_nothing_is_sent_twice() -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=3)
    texts: dict[int, list[int]] = {}
    answers = [
        engine.submit(
            request(1 + i, 6, 200),
            lambda chunk: texts.setdefault(chunk.generation.number, []).extend(chunk.token_ids),
        )
        for i in range(3)
    ]
    while engine.step():
        pass
    assert engine.stats().num_preempted > 0
    check(target, answers)
    assert [texts[answer.number] for answer in answers] == [one.token_ids for one in answers]


def test_who_waits_and_why_is_told() -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=3)
    for number, prompt in enumerate([40, 40, 100]):
        engine.submit(request(1 + number, prompt, 150, id=f"r{number}"))
    engine.step()
    waits_for = "request r2 needs 164 cells of the cache, 48 are free"
    assert [info.waits_for for info in engine.slots()] == ["", "", waits_for]
    while engine.slots()[1].state != "preempted":
        engine.step()
    waits_for = "request r1 waits until an older one has ended"
    assert [info.waits_for for info in engine.slots()] == ["", waits_for, waits_for]
    while engine.step():
        pass
    assert [info.waits_for for info in engine.slots()] == [""] * 3


def test_equal_beginnings_take_their_cells_once() -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=8, shares_copies=True)
    engine = Engine(target, None, slots=4)
    answers = [engine.submit(request(5, 180, 10)) for _ in range(4)]
    most = 0
    while engine.step():
        most = max(most, sum(info.state == "decode" for info in engine.slots()))
    check(target, answers)
    assert (most, engine.stats().num_preempted) == (4, 0)


def test_time_limits_go_on_and_a_cancelled_one_gives_its_place_up() -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=3)
    first = engine.submit(request(1, 6, 240))
    others = [engine.submit(request(2 + i, 6, 240, timeout=(None, 0.1)[i])) for i in range(2)]
    while sum(info.state == "preempted" for info in engine.slots()) < 2:
        assert engine.step()
    others[0].cancel()
    engine.step()
    assert others[0].finish_reason == "cancelled"
    time.sleep(max(0.0, others[1].timings.started + 0.1 - time.perf_counter()))
    engine.step()
    assert (first.finish_reason, others[1].finish_reason) == (None, "length")
    while engine.step():
        pass
    check(target, [first])


def test_other_clients_keep_their_share() -> None:
    """Many requests of one client do not keep another one's from its turn."""
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=4)
    many = [engine.submit(request(1 + i, 60, 100), tenant="a") for i in range(8)]
    one = engine.submit(request(20, 60, 100), tenant="b")
    while engine.step():
        pass
    check(target, [*many, one])
    assert sum(other.timings.finished < one.timings.finished for other in many) <= 4


@pytest.mark.parametrize("dear", [False, True])
def test_copies_are_made_where_they_are_cheaper_than_reading(
    dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=3)
    dump = target.dump

    def slow_dump(*arguments: Any) -> Any:
        time.sleep(0.05)
        return dump(*arguments)

    if dear:
        monkeypatch.setattr(target, "dump", slow_dump)
    else:
        engine.stats().prompt_seconds = 1e3
    check(target, engine.generate([request(1 + i, 30, 180) for i in range(20)]))
    stats = engine.stats()
    assert stats.num_preempted > 0
    if dear:  # once it was seen
        assert stats.num_reread_tokens > stats.num_restored_tokens > 0
    else:
        assert stats.num_restored_tokens > 0 == stats.num_reread_tokens
    assert engine._stepper.sequences.preempted._nbytes == 0


def test_copies_are_bounded_and_one_that_fails_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preempted_module, "MOST_BYTES", 300)
    target = FakeTarget(cells=SIZE, context_size=SIZE, min_copy=None)
    engine = Engine(target, None, slots=3)
    check(target, engine.generate([request(1 + i, 30, 180) for i in range(3)]))
    assert engine.stats().num_restored_tokens == 0 < engine.stats().num_reread_tokens
    monkeypatch.setattr(preempted_module, "MOST_BYTES", 1 << 20)

    def broken(*_: Any) -> Any:
        raise BackendError("no copy")

    monkeypatch.setattr(target, "dump", broken)
    check(target, engine.generate([request(1 + i, 30, 180) for i in range(3)]))


class Crowded(RuleBasedStateMachine):
    """An engine whose cache is too small, beside a target that holds every token in a cell.

    The target is the slow model of the cache: it knows each cell, refuses what does not fit, and
    says what plain decoding emits.
    """

    num_preempted = 0

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.slots = chance.randint(2, 6)
        self.shifts = chance.random() < 0.3
        size = chance.choice([40, 90])
        window = chance.choice([0, 0, 5])
        self.target = FakeTarget(
            vocab_size=31,
            sequences=self.slots,
            context_size=size,
            cells=size + chance.choice([0, 0, self.slots, size]),
            max_batch=self.slots + chance.choice([1, 20, 60]),
            min_copy=None if window else chance.choice([None, 4]),
            window=window,
            shares_copies=not self.shifts or chance.random() < 0.5,
            refusal=chance.choice([0.0, 0.1]),
            period=chance.choice([0, 11]),
        )
        kind = chance.choice(["none", "oracle", "branches", "draft model"])
        self.engine = Engine(
            self.target,
            slots=self.slots,
            context_shift=self.shifts,
            **drafts_of(kind, self.target, self.slots),
        )
        self.answers: list[Generation] = []
        self.saved: list[Any] = []

    @rule(seed=st.integers(0, 1 << 32), count=st.integers(1, 60))
    def live(self, seed: int, count: int) -> None:
        self.chance.seed(seed)
        calls = [self.submit] * 3 + [self.step] * 12 + [self.cancel, self.save, self.restore]
        for _ in range(count):
            self.chance.choice(calls)()

    def submit(self) -> None:
        chance, most = self.chance, self.target.context_size - 1
        size = min(most, chance.choice([2, 10, 30, most]))
        ids = [chance.randint(1, 3), *range(2, 31)] * 4
        limit = chance.choice([1, 20, 100]) if self.shifts else chance.choice([-1, 1, 20, 100])
        self.answers.append(
            self.engine.submit(
                Request(
                    prompt_ids=int32(ids[:size]),
                    max_tokens=limit,
                    slot=chance.choice([-1, -1, -1, 0]),
                    sampling=Sampling(temperature=0),
                )
            )
        )

    def step(self) -> None:
        self.engine.step()

    def cancel(self) -> None:
        if self.answers:
            self.chance.choice(self.answers).cancel()

    def save(self) -> None:
        self.saved.append(self.engine.save_slot(self.chance.randrange(self.slots)))

    def restore(self) -> None:
        ready = [one for one in self.saved if one.done()]
        if ready:
            saved = self.chance.choice(ready).result()
            self.engine.restore_slot(self.chance.randrange(self.slots), saved)

    @invariant()
    def the_oldest_run_and_the_newest_wait(self) -> None:
        slots = self.engine._slots if hasattr(self, "engine") else ()
        running = [s.used for s in slots if s.generation is not None and not s.preempted]
        waiting = [s.used for s in slots if s.preempted]
        assert not (running and waiting) or max(running) < min(waiting)
        for slot in slots:
            assert not slot.preempted or (slot.num_past, self.target.held[slot.id]) == (0, [])
            assert slot.tokens[: slot.num_past].tolist() == self.target.held[slot.id]

    @invariant()
    def shared_cells_are_not_counted_too_often(self) -> None:
        if not hasattr(self, "engine"):
            return
        sequences, slots = self.engine._stepper.sequences, self.engine._slots
        held = sum(slot.num_past for slot in slots)
        assert held - sequences.num_shared(slots) <= self.target.used() <= held

    @invariant()
    def all_that_ended_have_the_targets_own_text(self) -> None:
        for answer in getattr(self, "answers", []):
            if answer.finish_reason is None:
                continue
            prompt, most = answer.request.prompt_ids.tolist(), answer.request.max_tokens
            if self.shifts:
                expected = self.target.endless(prompt, most)
            else:
                expected = self.target.expected(prompt, most if most >= 0 else 1000)
            if answer.finish_reason == "cancelled":
                assert answer.token_ids == expected[: answer.num_tokens]
            else:
                assert (answer.error, answer.token_ids) == (None, expected)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        work = sum(one.request.prompt_ids.size + 200 for one in self.answers)
        for _ in range(10 * work + 100):
            if not self.engine.step() and not self.engine.busy:
                break
        assert not self.engine.busy, "a request waits for ever"
        self.all_that_ended_have_the_targets_own_text()
        type(self).num_preempted += self.engine.stats().num_preempted


@pytest.mark.hypothesis
def test_engine_and_cache_agree_whatever_happens() -> None:
    Crowded.num_preempted = 0
    Crowded.TestCase.settings = settings(SETTINGS, stateful_step_count=8)
    Crowded.TestCase().runTest()
    assert Crowded.num_preempted > 0


class Budgeted(LlamaTarget):
    """A target in an exact setting, each slot with a cache of its own, that bounds their sum."""

    def __init__(self, model: LlamaModel, cells: int, **settings: Any) -> None:
        super().__init__(model, threads=1, flash_attn=True, n_batch=32, **settings)
        self.cells = cells

    def decode(self, batch: Batch, rows: Rows) -> None:
        """Compute a batch, if it fits."""
        held = sum(self._context.pos_max(slot) + 1 for slot in range(self.num_sequences))
        if held + len(batch) > (self.cells or 0):
            raise CapacityError(f"{held} cells are taken")
        super().decode(batch, rows)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("name", ["embedded", "llama", "gemma3", "mamba", "lfm2"])
def test_texts_of_real_models_are_equal_to_those_of_requests_one_by_one(
    model_path: Callable[[str], str], name: str, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention, sliding window, recurrent and hybrid; copied or read again."""
    if reads:
        monkeypatch.setattr(preempted_module, "MOST_BYTES", 0)
    text = Path(__file__).read_text()
    with LlamaModel(model_path(name)) as model:
        ids = model.tokenize(text)[:400]
        requests = [
            Request(
                prompt_ids=ids[13 * i :][:30],
                max_tokens=80,
                sampling=Sampling(temperature=0.7, seed=i, ignore_eos=True),
            )
            for i in range(6)
        ]
        with LlamaTarget(model, context_size=128, threads=1, flash_attn=True, n_batch=32) as target:
            alone = Engine(target, None)
            expected = [alone.generate([one])[0].token_ids for one in requests]
        with Budgeted(model, 200, slots=4, context_size=128) as target:
            engine = Engine(target, "suffix", slots=4)
            answers = engine.generate(requests)
    assert [answer.token_ids for answer in answers] == expected
    stats = engine.stats()
    assert stats.num_preempted > 0
    assert (stats.num_restored_tokens == 0) is reads
