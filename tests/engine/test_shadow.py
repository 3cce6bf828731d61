"""Drafts that are only judged: nothing is sent, and figures are those of a run that sends them."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from helpers.paths import ROOT
from ngramspec._native.engine.shadow import Shadow
from ngramspec.costs import PROFILES
from ngramspec.engine import AutoPolicy, DraftSource, Engine, Request, Speculation
from ngramspec.engine.sources import drafters as chains
from ngramspec.errors import InputError

MAX_DRAFT = 20
COSTS = PROFILES["cpu"]
DEFAULT, SHADOW = Speculation(), Speculation(shadow=True)
TRACES = ROOT / "benchmarks" / "data" / "traces"


class Recorded(FakeTarget):
    """A target that says what was recorded: to a prompt that begins with number i, answer i."""

    def __init__(self, answers: Sequence[np.ndarray], **options: Any) -> None:
        super().__init__(**options)
        self.answers, self.num_prompts = answers, dict[int, int]()

    def next_token(self, tokens: list[int]) -> int:
        answer = self.answers[tokens[0]]
        place = len(tokens) - self.num_prompts[tokens[0]]
        return int(answer[place]) if place < len(answer) else 1


def policy(kind: str, shadow: bool) -> AutoPolicy:
    settings: dict[str, Any] = {"auto": {}, "gate": {"gate": True}, "fixed": {"fixed": 7}}[kind]
    return AutoPolicy(MAX_DRAFT, COSTS, shadow=shadow, **settings)


def prompts(count: int, speculation: Speculation = DEFAULT, **more: Any) -> list[Request]:
    return [
        Request(
            prompt_ids=np.array([2 + number % 5, *range(1, 9), 2 + number], np.int32),
            speculation=speculation,
            **{"max_tokens": 30 + 13 * number, **more},
        )
        for number in range(count)
    ]


def counts(one: Any) -> tuple[int, int, int]:
    return one.num_drafts, one.num_draft_tokens, one.num_accepted_tokens


def num_passes(engine: Engine) -> int:
    stats = engine.stats()
    return stats.num_slot_steps - stats.time_to_first_token.count


def only(engine: Engine) -> Shadow:
    (shadow,) = engine.shadows()
    return shadow


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("kind", ["auto", "gate", "fixed"])
@pytest.mark.parametrize("drafter", ["suffix", "ngram-map-k", "ngram-mod,suffix", "ngram-cache"])
@pytest.mark.parametrize("target", [{"period": 11}, {"forks": 3}, {"end_every": 40, "period": 7}])
def test_drafts_are_those_of_a_run_that_sends_them(
    kind: str, drafter: str, target: dict[str, int]
) -> None:
    params = {
        "ngram-mod": {"capacity": 4096, "n_match": 3, "n_min": 1},
        "ngram-map-k": {"size_n": 3},
    }
    own = {name: values for name, values in params.items() if name in drafter}
    engines = []
    for shadow in (False, True):
        engine = Engine(FakeTarget(**target), drafter, params=own, policy=policy(kind, shadow))
        texts = [generation.token_ids for generation in engine.generate(prompts(8))]
        engines.append((engine, texts))
    (sent, texts), (judged, same_texts) = engines
    assert texts == same_texts
    assert counts(judged.stats()) == (0, 0, 0)
    shadow = next(one for one in judged.shadows() if one.name == drafter)
    assert counts(shadow) == counts(sent.stats())
    assert shadow.num_passes == num_passes(sent)
    assert shadow.num_accepted_tokens > 0


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize(
    "more",
    [
        {"stop": (" 9 ",)},
        {"max_tokens": 1},
        {"max_tokens": 2},
        {"speculation": Speculation(max_draft=3, min_draft=2)},
    ],
)
def test_ends_and_limits_count_as_when_drafts_are_sent(more: dict[str, Any]) -> None:
    engines = [Engine(FakeTarget(), policy=policy("fixed", shadow)) for shadow in (False, True)]
    for engine in engines:
        engine.generate(prompts(9, **more))
    sent, judged = engines
    assert counts(only(judged)) == counts(sent.stats())
    assert only(judged).num_passes == num_passes(sent)


@pytest.mark.usefixtures("still")
def test_slots_that_share_passes_count_each_for_itself() -> None:
    engines = [
        Engine(FakeTarget(), slots=3, policy=policy("fixed", shadow)) for shadow in (False, True)
    ]
    for engine in engines:
        engine.generate(prompts(12, cache_prompt=False, max_tokens=60))
    sent, judged = engines
    assert only(judged).mean_accepted_length == pytest.approx(
        1 + sent.stats().num_accepted_tokens / num_passes(sent), rel=0.03
    )


@pytest.mark.usefixtures("still")
def test_the_estimate_is_what_passes_cost() -> None:
    targets = [FakeTarget(), FakeTarget()]
    engines = [
        Engine(target, policy=policy("auto", shadow), tree="off")
        for target, shadow in zip(targets, (False, True), strict=True)
    ]
    spent = []
    for engine, target in zip(engines, targets, strict=True):
        for request in prompts(8, cache_prompt=False):
            target.batches.clear()
            engine.generate([request])
            spent.append(sum(COSTS.cost(size) for size in target.batches[1:]))
    took, plain = sum(spent[:8]), sum(spent[8:])
    assert plain > took
    assert only(engines[1]).speedup == pytest.approx(plain / took, rel=1e-6)


def test_seconds_are_those_that_a_run_with_drafts_saves(timed: Callable[..., FakeTarget]) -> None:
    target = timed("moe")
    engine = Engine(target, policy=AutoPolicy(62, PROFILES["moe"], shadow=True))
    engine.generate(prompts(8, cache_prompt=False))
    plain = target.now
    shadow = only(engine)
    other = timed("moe")
    engine = Engine(other, policy=AutoPolicy(62, PROFILES["moe"]))
    engine.generate(prompts(8, cache_prompt=False))
    assert plain > 1.5 * other.now
    assert shadow.saved_seconds == pytest.approx(plain - other.now, rel=0.1)


@pytest.mark.usefixtures("still")
def test_one_request_can_ask_for_it_beside_others() -> None:
    engine = Engine(FakeTarget(), slots=2, policy=policy("auto", shadow=False))
    generations = engine.generate([*prompts(4), *prompts(4, SHADOW), *prompts(4)])
    judged = generations[4:8]
    assert all(one.timings.num_draft_tokens == 0 for one in judged)
    assert sum(one.timings.num_draft_tokens for one in generations) > 0
    assert only(engine).num_passes > 0
    stats = engine.source_stats()["suffix"]
    assert stats.num_draft_tokens == engine.stats().num_draft_tokens


@pytest.mark.usefixtures("still")
def test_each_default_drafter_is_judged_alone_too() -> None:
    names = "ngram-map-k,suffix"
    params = {"ngram-map-k": {"size_n": 3}}
    engine = Engine(FakeTarget(), names, params=params, policy=policy("fixed", shadow=True))
    engine.generate(prompts(8))
    figures = {one.name: counts(one) for one in engine.shadows()}
    assert figures.keys() == {names, "ngram-map-k", "suffix"}
    for name in ("ngram-map-k", "suffix"):
        own = {key: value for key, value in params.items() if key == name}
        alone = Engine(FakeTarget(), name, params=own, policy=policy("fixed", shadow=False))
        alone.generate(prompts(8))
        assert figures[name] == counts(alone.stats())


@pytest.mark.usefixtures("still")
def test_requests_go_on_where_each_drafter_alone_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chains, "MAX_KINDS", 2)
    engine = Engine(FakeTarget(), "ngram-map-k,suffix", policy=policy("auto", True))
    for namespace in "abcdef":  # each would hold three chains; what it holds is free at its end
        answers = engine.generate(prompts(2, Speculation(namespace=namespace)))
        assert [answer.finish_reason for answer in answers] == ["length"] * 2
    assert "ngram-map-k,suffix" in {shadow.name for shadow in engine.shadows()}


def test_what_was_held_is_given_back_if_drafters_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(FakeTarget(), "ngram-map-k,suffix", policy=policy("auto", True))
    hold, released = engine.drafters.hold, []

    def failing(speculation: Speculation, tenant: str = "") -> Any:
        if speculation.types == ("suffix",):
            raise MemoryError("no room")
        return hold(speculation, tenant)

    monkeypatch.setattr(engine.drafters, "hold", failing)
    monkeypatch.setattr(engine.drafters, "release", released.append)
    with pytest.raises(MemoryError):
        engine.submit(prompts(1)[0])
    assert len(released) == 2
    assert None not in released


def test_drafters_of_a_request_have_figures_of_their_own() -> None:
    engine = Engine(FakeTarget(), policy=policy("fixed", shadow=True))
    own = Speculation(types=("ngram-map-k",), params={"ngram-map-k": {"size_n": 3}})
    same = Speculation(params={"suffix": {"max_draft": 3}})
    engine.generate([*prompts(2), *prompts(2, own)])
    before = next(counts(one) for one in engine.shadows() if one.name == "suffix")
    engine.generate(prompts(2, same))
    figures = {one.name: counts(one) for one in engine.shadows()}
    own_names = {f"{name} (own parameters)" for name in ("suffix", "ngram-map-k")}
    assert figures.keys() == {"suffix", *own_names}
    assert figures["suffix"] == before


@pytest.mark.usefixtures("still")
def test_the_memory_of_a_text_that_was_much_longer_is_freed() -> None:
    engine = Engine(FakeTarget(context_size=65_536, max_batch=65_536), policy=policy("auto", True))
    source = engine.drafters.get(DEFAULT)
    assert source is not None
    sizes = []
    for length in (60_000, 7000):
        ids = 1 + np.random.default_rng(0).integers(0, 90, length, dtype=np.int32)
        engine.generate([Request(prompt_ids=ids, max_tokens=8)])
        sizes.append(source.nbytes)
    assert sizes[0] > 2 * sizes[1]


@pytest.mark.usefixtures("still")
def test_drafters_count_nothing_of_what_is_only_judged() -> None:
    engine = Engine(FakeTarget(), policy=policy("fixed", True))
    engine.generate(prompts(6))
    stats = engine.source_stats()["suffix"]
    assert only(engine).num_drafts > 0
    assert (stats.begin_calls, stats.propose_calls, stats.num_drafts) == (0, 0, 0)


@pytest.mark.usefixtures("still")
def test_a_pass_that_an_answer_ends_in_emits_no_token_of_its_own() -> None:
    engine = Engine(FakeTarget(), policy=policy("fixed", shadow=True))
    answers = engine.generate(prompts(1, max_tokens=100))
    for place in range(100, 140, 3):
        stop = answers[0].text[place : place + 7]
        answers += engine.generate(prompts(1, max_tokens=100, stop=(stop,)))
    emitted = sum(answer.num_tokens - 1 for answer in answers)
    shadow = only(engine)
    assert shadow.num_accepted_tokens + shadow.num_passes > emitted
    assert shadow.mean_accepted_length == pytest.approx(emitted / shadow.num_passes)


@pytest.mark.usefixtures("still")
def test_drafters_in_python_are_not_judged_and_send_nothing() -> None:
    class Mine(DraftSource):
        name = "mine"

        def draft(self, slot: int, limit: int) -> Any:
            raise AssertionError("asked")

    engine = Engine(FakeTarget(), Mine(), policy=policy("auto", shadow=True))
    engine.generate(prompts(2))
    assert engine.shadows() == ()
    assert engine.source_failures() == {}


@pytest.mark.usefixtures("still")
def test_cancelled_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(FakeTarget(), policy=policy("fixed", shadow=True))
    generation = engine.submit(prompts(1, max_tokens=200)[0])
    for _ in range(30):
        engine.step()
    generation.cancel()
    while engine.step():
        pass
    passes = only(engine).num_passes
    assert passes > 0
    assert generation.finish_reason == "cancelled"
    engine.generate(prompts(1))
    assert only(engine).num_passes > passes


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize(
    "name", ["code_edit.aider_swebench", "chat.mtbench", "structured.spider_sql"]
)
@pytest.mark.parametrize("tree", ["off", 4])
def test_recorded_answers_give_the_same_figures(name: str, tree: int | str) -> None:
    answers, requests = recorded(TRACES / f"{name}.txt.xz")
    vocab_size = 1 + max(int(part.max()) for pair in requests for part in pair)
    figures = []
    for shadow in (False, True):
        target = Recorded(answers, vocab_size=vocab_size, context_size=8192, max_batch=8192)
        engine = Engine(target, policy=policy("auto", shadow), tree=tree)
        for number, (prompt, output) in enumerate(requests):
            target.num_prompts[number] = len(prompt) + 1
            ids = np.concatenate([[number], prompt]).astype(np.int32)
            engine.generate([Request(prompt_ids=ids, max_tokens=len(output), cache_prompt=False)])
        figures.append(counts(only(engine) if shadow else engine.stats()))
    assert figures[0] == figures[1]
    assert figures[0][2] > 0


def recorded(path: Path, count: int = 6) -> tuple[list[np.ndarray], list[tuple[Any, Any]]]:
    requests = []
    with lzma.open(path, "rt") as file:
        for line in file:
            num, *ids = map(int, line.split())
            requests.append((np.array(ids[:num][-600:]), np.array(ids[num:][:250])))
            if len(requests) == count:
                break
    ids, inverse = np.unique(
        np.concatenate([np.concatenate(pair) for pair in requests]), return_inverse=True
    )
    # Few enough tokens for rows of logits in Python.
    start, small = 0, []
    for prompt, output in requests:
        stop = start + len(prompt) + len(output)
        tokens = inverse[start:stop] + 1
        small.append((tokens[: len(prompt)], tokens[len(prompt) :]))
        start = stop
    return [output for _, output in small], small


def test_such_a_policy_is_for_engines() -> None:
    from ngramspec import create_drafter

    with pytest.raises(InputError, match="a policy with shadow is for engines"):
        create_drafter("suffix", policy=AutoPolicy(shadow=True))
    assert AutoPolicy(shadow=True).name == "shadow"
    with pytest.raises(InputError, match="shadow must be True or False"):
        Speculation(shadow=1)  # type: ignore[arg-type]
