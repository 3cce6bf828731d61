"""Speculator: an AutoPolicy chooses among sources that are not native and learns from all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.costs import PROFILES, CostTable
from ngramspec.engine import AutoPolicy, DraftModel, DraftSource, Engine, Generation, Request
from ngramspec.engine.sources import draft_model

Timed = Callable[..., FakeTarget]
LENGTH = 120
PROMPT = int32([3, 5, 7])


class Own(DraftSource):
    """A drafter of the user's: right or wrong, with or without a claim."""

    def __init__(
        self, target: FakeTarget, right: bool = True, claim: Any = None, most: int = 4
    ) -> None:
        self.target, self.right, self.tokens = target, right, dict[int, list[int]]()
        self.most = most
        self.shortened: list[int] = []
        if claim is not None:
            self.confidence = lambda slot: claim  # type: ignore[method-assign]

    def begin(self, slot: int, token_ids: Any) -> None:
        self.tokens[slot] = token_ids.tolist()

    def draft(self, slot: int, limit: int) -> np.ndarray:
        draft = self.target.expected(self.tokens[slot], min(limit, self.most))
        return int32(draft if self.right else [token % 96 + 1 for token in draft])

    def accept(self, slot: int, token_ids: Any, num_accepted: int) -> None:
        self.tokens[slot] += token_ids.tolist()

    def end(self, slot: int) -> None:
        del self.tokens[slot]

    def shorten(self, slot: int, length: int) -> None:
        self.shortened.append(length)


def run(engine: Engine, slots: int = 1, **request: Any) -> list[Generation]:
    asked = Request(prompt_ids=PROMPT, max_tokens=LENGTH, **request)
    answers = engine.generate([asked] * slots)
    plain = Engine(FakeTarget(period=0), None, slots=1)
    expected = plain.generate([Request(prompt_ids=PROMPT, max_tokens=LENGTH)])[0].token_ids
    assert all(one.token_ids == expected for one in answers)
    return answers


def expected_text() -> Any:
    return int32(FakeTarget(period=0).expected(PROMPT.tolist(), LENGTH))


def test_a_right_source_without_claims_is_learnt_to_be_right(timed: Timed) -> None:
    target, policy = timed(period=0), AutoPolicy(costs=PROFILES["moe"])
    own = Own(target)
    engine = Engine(target, own, policy=policy)
    run(engine)
    assert engine.stats().num_accepted_tokens > 0.6 * LENGTH
    assert own.shortened.count(4) > 0.7 * len(own.shortened)  # a pass now and then has no drafts


def test_a_wrong_source_falls_silent_and_a_right_one_goes_on(timed: Timed) -> None:
    target, policy = timed(period=0), AutoPolicy(costs=PROFILES["moe"])
    engine = Engine(target, Own(target, right=False), policy=policy)
    (answer,) = run(engine, prediction_ids=expected_text())
    assert answer.timings.num_prediction_accepted > 0.6 * LENGTH
    assert engine.stats().num_draft_tokens - engine.stats().num_accepted_tokens < 0.1 * LENGTH


def test_a_first_draft_adds_little_until_drafts_were_right(timed: Timed) -> None:
    """As one of a native drafter: a pass may cost six passes over one token more."""
    target = timed("cpu", period=0)
    own = Own(target, claim=np.full(40, 0.999, np.float32), most=40)
    run(Engine(target, own, policy=AutoPolicy(costs=PROFILES["cpu"])))
    single, sent = PROFILES["cpu"].cost(1), [size for size in target.batches if size > 3]
    assert PROFILES["cpu"].cost(sent[0]) <= 7 * single < PROFILES["cpu"].cost(max(sent))


@pytest.mark.parametrize("claim", [None, np.full(4, 0.9, np.float32), [0.9] * 8])
def test_slots_share_the_pass(timed: Timed, claim: Any) -> None:
    target = timed(period=0, max_batch=8)
    engine = Engine(target, Own(target, claim=claim), slots=4, policy=AutoPolicy())
    run(engine, slots=4)
    assert max(target.batches) <= 8
    assert engine.stats().num_accepted_tokens > LENGTH


@pytest.mark.parametrize(
    "claim", [[0.9], [2.0] * 4, [float("nan")] * 4, "none", np.zeros((4, 2), np.float32)]
)
def test_a_source_that_claims_nonsense_is_shut_out(timed: Timed, claim: Any) -> None:
    target = timed(period=0)
    engine = Engine(target, Own(target, claim=claim), policy=AutoPolicy())
    run(engine)
    assert engine.source_failures() == {"own": 1}
    assert engine.stats().num_draft_tokens == 0


def test_a_source_that_cannot_be_shortened_is_shut_out(timed: Timed) -> None:
    target = timed(period=0)
    own = Own(target)
    own.shorten = None  # type: ignore[assignment,method-assign]
    engine = Engine(target, own, policy=AutoPolicy())
    run(engine)
    assert engine.source_failures() == {"own": 1}


class Dear(Own):
    """A drafter whose drafts take time, as it says."""

    own_passes = True

    def __init__(self, target: FakeTarget, start: float, right: bool = True) -> None:
        super().__init__(target, right)
        self.seconds, self.calls = start, 0

    def price(self) -> tuple[float, float]:
        return self.seconds, 0.0

    def draft(self, slot: int, limit: int) -> np.ndarray:
        self.calls += 1
        return super().draft(slot, limit)


@pytest.mark.parametrize(
    ("start", "least", "most"),
    [(0.0, 0.2, 0.4), (1.0, 0.2, 0.5), (50.0, 0.0, 0.02)],  # a pass takes 1.12 and more
)
def test_a_source_is_asked_if_it_is_worth_its_price(
    timed: Timed, start: float, least: float, most: float
) -> None:
    target = timed(period=0)
    own = Dear(target, start)
    run(Engine(target, own, policy=AutoPolicy(costs=PROFILES["moe"])))
    assert least * LENGTH <= own.calls <= most * LENGTH


@pytest.mark.parametrize("drafter", [None, "suffix"])
def test_a_source_that_rests_hears_of_tokens_seldom_and_of_all_at_the_end(
    timed: Timed, drafter: str | None
) -> None:
    target = timed(period=0)
    drafts = DraftModel(FakeTarget(period=0), n_max=6)
    drafts.price = lambda: (1e6, 1e6)  # type: ignore[method-assign]
    calls = list[tuple[str, list[int]]]()

    def note(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(slot: int, *arguments: Any) -> Any:
            calls.append((name, arguments[0].tolist() if arguments else []))
            return call(slot, *arguments)

        return noted

    for name in ("begin", "accept", "end"):
        setattr(drafts, name, note(name, getattr(drafts, name)))
    policy = AutoPolicy(costs=PROFILES["moe"])
    engine = Engine(target, drafter, slots=1, draft_model=drafts, policy=policy)
    (answer,) = run(engine)
    pieces = [tokens for name, tokens in calls if name == "accept"]
    assert [token for piece in pieces for token in piece] == list(answer.token_ids)
    assert len(pieces) < 0.1 * LENGTH
    assert calls[0] == ("begin", PROMPT.tolist())
    assert calls[-1][0] == "end"


def test_a_source_is_told_of_all_tokens_before_it_is_asked(timed: Timed) -> None:
    target = timed(period=0)
    own = Dear(target, 0.3, right=False)
    lengths, draft = list[int](), own.draft

    def drafted(slot: int, limit: int) -> np.ndarray:
        lengths.append(len(own.tokens[slot]) - len(target.held[slot]))
        return draft(slot, limit)

    own.draft = drafted  # type: ignore[method-assign]
    run(Engine(target, own, policy=AutoPolicy(costs=PROFILES["moe"])))
    assert lengths
    assert set(lengths) == {1}, "all but the newest token are in the target's cache"


def test_a_source_that_is_wrong_is_asked_less_the_dearer_it_is(timed: Timed) -> None:
    calls = []
    for start in (0.001, 0.1, 1.0):
        target = timed(period=0)
        own = Dear(target, start, right=False)
        run(Engine(target, own, policy=AutoPolicy(costs=PROFILES["moe"])))
        calls.append(own.calls)
    assert calls[0] > calls[1] >= calls[2]
    assert calls[1] < 0.2 * LENGTH


def test_a_draft_model_goes_on_where_a_free_draft_ends(timed: Timed) -> None:
    target, model = timed("h100-8b", period=0), FakeTarget(period=0)
    own = Own(target, claim=np.full(4, 0.99, np.float32))
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    engine = Engine(target, own, draft_model=DraftModel(model, n_max=6), policy=policy)
    run(engine)
    counts = engine.source_stats()["draft-simple"]
    assert max(target.batches) == 1 + 4 + 6
    assert counts.num_accepted_tokens > 0.4 * LENGTH
    assert counts.num_accepted_tokens == counts.num_draft_tokens  # a draft on trial does not count
    assert engine.stats().num_accepted_tokens > 0.85 * LENGTH


@pytest.mark.parametrize(
    ("optional", "value"),
    [
        ("price", lambda: (-1.0, 0.0)),
        ("price", lambda: "dear"),
        ("price", lambda: 1 / 0),
        ("backlog", lambda slot: -1.0),
        ("backlog", lambda slot: 1 / 0),
        ("max_draft", "long"),
    ],
)
def test_a_source_whose_price_is_nonsense_is_shut_out(
    timed: Timed, optional: str, value: Any
) -> None:
    target = timed(period=0)
    own = Dear(target, 0.0)
    setattr(own, optional, value)
    engine = Engine(target, own, policy=AutoPolicy(costs=PROFILES["moe"]))
    run(engine)
    run(engine)
    assert engine.source_failures() == {"own": 2}  # once for each request


@pytest.mark.parametrize("slots", [1, 3])
def test_a_draft_model_goes_on_where_a_native_draft_ends(timed: Timed, slots: int) -> None:
    target, model = timed("h100-8b", period=2), FakeTarget(period=2)
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    params = {"ngram-simple": {"size_n": 3, "size_m": 4}}
    drafts = DraftModel(model, n_max=6)
    engine = Engine(
        target, "ngram-simple", params=params, slots=slots, draft_model=drafts, policy=policy
    )
    asked = Request(prompt_ids=PROMPT, max_tokens=LENGTH)
    expected = target.expected(PROMPT.tolist(), LENGTH)
    assert [answer.token_ids for answer in engine.generate([asked] * slots)] == [expected] * slots
    sources = engine.source_stats()
    assert max(target.batches) >= 1 + 4 + 6
    assert sources["ngram-simple"].num_accepted_tokens > 0.2 * LENGTH * slots
    assert sources["draft-simple"].num_accepted_tokens > 0.2 * LENGTH * slots
    total = sum(one.num_accepted_tokens for one in sources.values())
    assert total == engine.stats().num_accepted_tokens > 0.7 * LENGTH * slots


def test_a_draft_model_that_fails_after_a_free_draft_is_shut_out(timed: Timed) -> None:
    target, model = timed("h100-8b", period=0), FakeTarget(period=0)
    drafts = DraftModel(model, n_max=6)

    def fail(*_: Any) -> Any:
        raise RuntimeError("on purpose")

    drafts.extend = fail  # type: ignore[method-assign]
    own = Own(target, claim=np.full(4, 0.99, np.float32))
    engine = Engine(target, own, draft_model=drafts, policy=AutoPolicy(costs=PROFILES["h100-8b"]))
    run(engine)
    assert engine.source_failures() == {"draft-simple": 1}
    assert engine.stats().num_accepted_tokens > 0.6 * LENGTH


def test_a_draft_model_is_asked_where_nothing_else_is_sent(timed: Timed) -> None:
    target, model = timed(period=0), FakeTarget(period=0)
    own = Own(target, right=False)
    engine = Engine(target, own, draft_model=DraftModel(model), policy=AutoPolicy())
    run(engine)
    assert engine.source_stats()["draft-simple"].num_accepted_tokens > 0.25 * LENGTH


def test_a_draft_model_goes_on_while_a_long_prompt_is_read(timed: Timed) -> None:
    """A prompt that fills every pass makes room for what pays."""
    options = {"period": 0, "sequences": 2, "context_size": 4000}
    target = timed("h100-8b", max_batch=64, **options)
    drafts = DraftModel(FakeTarget(**options), n_max=6)
    policy = AutoPolicy(costs=PROFILES["h100-8b"])
    engine = Engine(target, None, slots=2, draft_model=drafts, policy=policy)
    first = engine.submit(Request(prompt_ids=PROMPT, max_tokens=1000))
    while len(first.token_ids) < LENGTH:
        engine.step()
    second = engine.submit(Request(prompt_ids=int32([9] * 1000), max_tokens=1))
    before, steps = len(first.token_ids), 0
    while not second.finish_reason:
        engine.step()
        steps += 1
    assert len(first.token_ids) - before > 5 * steps
    assert steps < 1.4 * 1000 / 64
    assert first.token_ids == target.expected(PROMPT.tolist(), len(first.token_ids))


def test_a_draft_model_that_is_never_right_is_seldom_asked(timed: Timed) -> None:
    target, model = timed(period=0), FakeTarget(period=5)
    drafts = DraftModel(model)
    drafts.price = lambda: (0.0, 0.1 * PROFILES["moe"].cost(1))  # type: ignore[method-assign]
    engine = Engine(target, None, draft_model=drafts, policy=AutoPolicy(costs=PROFILES["moe"]))
    run(engine)
    assert 0 < engine.source_stats()["draft-simple"].propose_calls < 0.35 * LENGTH


def calls_of(
    monkeypatch: pytest.MonkeyPatch,
    prompt: int,
    slow: float = 0.0,
    length: int = 300,
    **options: Any,
) -> list[int]:
    """Return how often a draft model is asked in each of 8 requests; its first decode is slow."""
    sizes: Any = {"period": 0, "context_size": 4096, "sequences": 1, "max_batch": 512}
    costs = CostTable(((1, 0.010), (64, 0.013), (512, 0.03)))
    target, model = FakeTarget(costs=costs, **sizes), FakeTarget(**sizes)
    stalls, decode, says = [slow], model.decode, model.next_token
    wrong = [True]

    def decode_slowly(batch: Any, rows: Any) -> None:
        decode(batch, rows)
        target.now += 0.001 + 0.00005 * len(batch) + (stalls.pop() if stalls else 0.0)

    monkeypatch.setattr(model, "decode", decode_slowly)
    monkeypatch.setattr(model, "next_token", lambda t: says(t) % 96 + 1 if wrong[0] else says(t))
    clock = SimpleNamespace(perf_counter=lambda: target.now)
    monkeypatch.setattr("ngramspec.engine.stepper.time", clock)
    monkeypatch.setattr("ngramspec.engine.speculator.perf_counter", clock.perf_counter)
    monkeypatch.setattr(draft_model, "perf_counter_ns", lambda: int(1e9 * target.now))
    drafts = DraftModel(model, n_max=6, p_min=0.0)
    policy = AutoPolicy(costs=costs)
    engine = Engine(target, None, slots=1, draft_model=drafts, policy=policy, tree="off", **options)
    totals = [0]
    for request in range(8):
        wrong[0] = request < 2 and not slow
        ids = np.random.default_rng(request).integers(1, 97, prompt).astype(np.int32)
        engine.generate([Request(prompt_ids=ids, max_tokens=length)])
        totals.append(engine.source_stats()["draft-simple"].propose_calls)
    return [after - before for before, after in pairwise(totals)]


@pytest.mark.parametrize("prompt", [20, 600])
def test_a_draft_model_that_was_wrong_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, prompt: int
) -> None:
    calls = calls_of(monkeypatch, prompt)
    assert min(calls[3:]) > 25, calls


@pytest.mark.parametrize("prompt", [5, 600])
@pytest.mark.parametrize("slow", [0.05, 0.3])
def test_a_draft_model_that_was_slow_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, prompt: int, slow: float
) -> None:
    calls = calls_of(monkeypatch, prompt, slow)
    assert min(calls[5:]) > 25, calls


def test_a_draft_model_reads_a_long_prompt_for_a_long_answer_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prompt takes it 15 passes of the target."""
    assert calls_of(monkeypatch, 3000, 1e-9, length=12)[2:] == [0] * 6
    assert min(calls_of(monkeypatch, 3000, 1e-9, length=900)[2:]) > 75


def test_a_draft_model_is_not_asked_for_drafts_that_are_too_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert calls_of(monkeypatch, 20, min_draft=8) == [0] * 8
