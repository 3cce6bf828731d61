"""What draft sources have saved: as much as runs without them take longer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, EngineStats, Request, Speculation
from ngramspec.engine.info import seconds_saved
from ngramspec.stats import SourceStats

COSTS = CostTable(((1, 0.1), (2, 0.14), (8, 0.3), (64, 1.6)))
PLAIN = Speculation(enabled=False)


class Machine(FakeTarget):
    """A target whose passes take longer now and then, or all of a sudden."""

    def __init__(self, seed: int | None = None, **options: object) -> None:
        super().__init__(costs=COSTS, **options)  # type: ignore[arg-type]
        self.load = None if seed is None else random.Random(seed)
        self.slower = 1.0

    def decode(self, batch: Batch, rows: Rows) -> None:
        before = self.now
        super().decode(batch, rows)
        times = self.slower
        if self.load is not None:
            times *= self.load.lognormvariate(0.3, 0.4) * (8 if self.load.random() < 0.02 else 1)
        self.now = before + times * (self.now - before)


def source(name: str, drafted: int, accepted: int, ns: int = 0) -> SourceStats:
    return SourceStats(name, 1, 1, 1, 10, 1, drafted, accepted, (), 0, ns, 0)


def an_engine(
    target: FakeTarget, monkeypatch: pytest.MonkeyPatch, costs: CostTable | None = COSTS
) -> Engine:
    monkeypatch.setattr("ngramspec.engine.stepper.time.perf_counter", lambda: target.now)
    return Engine(target, "suffix", slots=target.num_sequences, policy=AutoPolicy(62, costs))


def a_run(engine: Engine, target: FakeTarget, count: int, speculation: Speculation) -> float:
    """Answer the same questions, as many for each slot; return the seconds of the target."""
    return answer(engine, target, count, speculation)[0]


def answer(
    engine: Engine, target: FakeTarget, count: int, speculation: Speculation
) -> tuple[float, float]:
    """Answer as a_run; return the seconds of the target, and what the requests count as saved."""
    started = target.now
    requests = [
        Request(
            prompt_ids=np.array([3 + number, *range(1, 12)], np.int32),
            max_tokens=60,
            speculation=speculation,
            cache_prompt=False,
        )
        for number in range(count * engine.num_slots)
    ]
    saved = sum(generation.timings.saved_seconds for generation in engine.generate(requests))
    return target.now - started, saved


def saved_and_true(
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    seed: int | None = None,
    costs: CostTable = COSTS,
) -> tuple[float, float]:
    """Return the seconds that a minute counts as saved, and those that it takes longer without."""
    target = Machine(seed, sequences=slots)
    target.costs = costs
    engine = an_engine(target, monkeypatch)
    a_run(engine, target, 3, Speculation())  # the policy learns what passes take
    before = engine.seconds_saved()["suffix"]
    took = a_run(engine, target, 20, Speculation())
    saved = engine.seconds_saved()["suffix"] - before
    plain = a_run(engine, target, 20, PLAIN)
    assert plain > 60
    return saved, plain - took


@pytest.mark.parametrize(("slots", "seed"), [(1, None), (3, None), (1, 1), (3, 1)])
def test_saved_is_what_a_run_without_drafts_takes_longer(
    slots: int, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, longer = saved_and_true(monkeypatch, slots, seed)
    assert saved == pytest.approx(longer, rel=0.2)


@pytest.mark.parametrize("slots", [1, 3])
def test_it_is_so_on_the_mean_of_loaded_machines(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = [saved_and_true(monkeypatch, slots, seed) for seed in range(30)]
    saved, longer = map(sum, zip(*minutes, strict=True))
    assert saved == pytest.approx(longer, rel=0.15)


STEEP = CostTable(((1, 0.1), (2, 0.17), (8, 0.45), (64, 2.8)))
FLAT = CostTable(((1, 0.1), (2, 0.12), (8, 0.18), (64, 0.7)))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("costs", [STEEP, FLAT])
def test_it_is_so_where_the_table_is_of_another_machine(
    costs: CostTable, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, longer = saved_and_true(monkeypatch, slots, costs=costs)
    assert saved == pytest.approx(longer, rel=0.1)


@pytest.mark.parametrize("slots", [1, 3])
def test_requests_count_what_they_saved_of_it(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Machine(sequences=slots)
    engine = an_engine(target, monkeypatch)
    a_run(engine, target, 3, Speculation())
    before = sum(engine.seconds_saved().values())
    _, saved = answer(engine, target, 20, Speculation())
    assert saved == pytest.approx(sum(engine.seconds_saved().values()) - before, rel=0.02)
    assert answer(engine, target, 2, PLAIN)[1] == 0.0


@pytest.mark.parametrize("slower", [8.0, 1 / 8])
def test_what_is_saved_stays_whatever_passes_cost_later(
    slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Machine(sequences=1)
    engine = an_engine(target, monkeypatch)
    a_run(engine, target, 10, Speculation())
    before = engine.seconds_saved()
    target.slower = slower
    a_run(engine, target, 10, PLAIN)
    assert engine.seconds_saved() == before


def test_a_pass_saves_no_more_than_it_took_for_each_accepted_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Machine(sequences=1)
    wrong = CostTable(((1, 5.0), (64, 5.1)))  # measured while the machine was busy
    engine = an_engine(target, monkeypatch, wrong)
    a_run(engine, target, 2, Speculation())
    accepted = engine.stats().num_accepted_tokens
    assert accepted
    assert -target.now < engine.seconds_saved()["suffix"] < COSTS.cost(64) * accepted


def test_a_pass_that_came_to_a_halt_counts_for_little_more_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Machine(sequences=1)
    engine = an_engine(target, monkeypatch)
    a_run(engine, target, 6, Speculation())
    usual = engine.seconds_saved()["suffix"]
    halted, decode = [False], target.decode

    def halt(batch: Batch, rows: Rows) -> None:
        decode(batch, rows)
        if len(batch) > 8 and batch.num_outputs == len(batch) and not halted[0]:
            halted[0] = True
            target.now += 1000.0

    target.decode = halt  # type: ignore[method-assign]
    engine.generate([Request(prompt_ids=np.array([5, *range(1, 12)], np.int32), max_tokens=60)])
    assert halted[0]
    assert engine.seconds_saved()["suffix"] - usual < 60


def test_each_source_gets_its_part_by_its_tokens_and_its_own_time() -> None:
    stats = EngineStats()
    stats.accepted_seconds, stats.drafted_seconds = 31.0, 5.0
    saved = seconds_saved(stats, {"a": source("a", 40, 30), "b": source("b", 10, 1, ns=2 * 10**9)})
    assert saved["a"] == pytest.approx(30 * 1.0 - 40 * 0.1)
    assert saved["b"] == pytest.approx(1 * 1.0 - 10 * 0.1 - 2.0)


def test_nothing_is_saved_before_the_first_draft() -> None:
    assert seconds_saved(EngineStats(), {"a": source("a", 0, 0)}) == {"a": 0.0}


def test_an_engine_tells_if_its_policy_knows_times() -> None:
    request = Request(prompt_ids=np.arange(1, 30, dtype=np.int32), max_tokens=200)
    timed = AutoPolicy(62, CostTable(((1, 0.01), (63, 0.011))))
    for policy, tells in ((timed, True), (AutoPolicy(fixed=4), False)):
        engine = Engine(FakeTarget(), "suffix", policy=policy)
        engine.generate([request])
        assert ("suffix" in engine.seconds_saved()) == tells
