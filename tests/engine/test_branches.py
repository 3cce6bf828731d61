"""Trees of drafts in the engine: sent where they pay, right along any branch, the text the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec import create_drafter
from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, Generation, Request, Sampling
from ngramspec.errors import CapacityError, InputError

FLAT = CostTable(((1, 1.0), (64, 1.05)))  # further tokens cost next to nothing
MEMORIES: list[dict[str, Any]] = [
    {},
    {"max_rollback": 5},
    {"max_rollback": 0, "can_save": True},
]
DEAR = CostTable(((1, 1.0), (2, 2.0), (64, 64.0)))  # every token costs a pass
LENGTH = 200


def run(
    target: FakeTarget, requests: list[Request], costs: CostTable = FLAT, **options: Any
) -> Engine:
    """Run requests side by side and compare each with plain decoding."""
    settings = {"slots": target.num_sequences, "policy": AutoPolicy(costs=costs), **options}
    engine = Engine(target, settings.pop("drafter", "suffix"), **settings)
    for answer in engine.generate(requests):
        request = answer.request
        if target.cells is not None and isinstance(answer.error, CapacityError):
            continue  # the texts of all requests do not fit, with drafts or without
        assert answer.error is None
        expected = target.outcome(request.prompt_ids.tolist(), request.max_tokens, request.stop)
        assert (list(answer.token_ids), answer.text, answer.finish_reason) == expected
    return engine


def request(first: int, length: int = LENGTH, **fields: Any) -> Request:
    greedy = Sampling(temperature=0.0)
    return Request(prompt_ids=int32([first, 5, 7]), sampling=greedy, max_tokens=length, **fields)


@pytest.mark.parametrize("slots", [1, 3])
def test_branches_take_fewer_passes_where_tokens_are_cheap(still: None, slots: int) -> None:
    passes = {}
    for tree in ("off", 2, "auto"):
        target = FakeTarget(sequences=slots, forks=4, context_size=1024, max_batch=64 * slots)
        run(target, [request(3 + number, 600) for number in range(6)], tree=tree)
        passes[tree] = len(target.batches)
        assert (target.adopted > 0) == (tree != "off")
    assert passes["auto"] <= passes[2] < passes["off"]


def test_where_tokens_are_dear_there_are_no_branches(still: None) -> None:
    target = FakeTarget(sequences=1, forks=3)
    run(target, [request(3)], DEAR)
    assert target.adopted == 0


def test_a_draft_has_no_more_branches_than_the_target(still: None) -> None:
    target = FakeTarget(sequences=1, forks=6, max_branches=2)  # which asserts it
    run(target, [request(3 + number, 600) for number in range(6)])
    assert target.adopted > 0


@given(st.integers(0, 1 << 32))
def test_any_request_beside_any_other_gets_its_text(seed: int) -> None:
    chance = random.Random(seed)
    target = FakeTarget(
        sequences=chance.randint(1, 4),
        forks=chance.randint(2, 4),
        max_batch=chance.choice([4, 16, 64]),
        context_size=chance.choice([24, 60, 256]),
        cells=chance.choice([None, 300, 600]),
        min_copy=chance.choice([None, 4]),
        max_branches=chance.randint(2, 5),
        end_every=chance.choice([0, 40]),
        refusal=chance.choice([0.0, 0.2]),
        split=chance.random() < 0.3,
        **chance.choice(MEMORIES),
    )
    most = target.context_size - 4
    requests = [
        Request(
            prompt_ids=int32(
                [chance.randint(1, 90) for _ in range(chance.randint(1, min(most, 20)))]
            ),
            sampling=Sampling(temperature=0.0),
            max_tokens=chance.randint(1, 120),
            stop=(" 9",) if chance.random() < 0.3 else (),
        )
        for _ in range(chance.randint(1, 8))
    ]
    drafter = chance.choice(["suffix", "recycle", "suffix,recycle", "ngram-map-k,suffix"])
    run(target, requests, exact=chance.random() < 0.3, drafter=drafter)


def test_a_context_that_shifts_has_branches_too(still: None) -> None:
    target = FakeTarget(sequences=1, forks=3, context_size=60)
    engine = Engine(target, "suffix", policy=AutoPolicy(costs=FLAT), context_shift=True)
    answer = engine.generate([request(3, 300)])[0]
    assert list(answer.token_ids) == target.endless([3, 5, 7], 300)
    assert target.adopted > 0


def test_in_the_exact_setting_a_text_lies_in_its_order(still: None) -> None:
    """A branch that was right is decoded again, so nothing is adopted."""
    passes = {}
    for tree in ("off", "auto"):
        target = FakeTarget(sequences=1, forks=3)
        run(target, [request(3)], exact=True, tree=tree)
        assert target.adopted == 0
        passes[tree] = len(target.batches)
    assert passes["auto"] < passes["off"]


@pytest.mark.parametrize("refusal", [0.0, 0.3])
def test_a_checkpoint_brings_back_a_text_without_branches(still: None, refusal: float) -> None:
    target = FakeTarget(sequences=1, forks=3, max_rollback=0, can_save=True, refusal=refusal)
    trees, decode = list[bool](), target.decode

    def noting(batch: Batch, rows: Rows) -> None:
        trees.append(bool((batch.branches_of() > 1).any()))
        decode(batch, rows)

    target.decode = noting  # type: ignore[method-assign]
    run(target, [request(3)])
    assert (any(trees), target.adopted) == (True, 0)  # after adopt comes truncate


def test_figures_count_the_right_path(still: None) -> None:
    target = FakeTarget(sequences=1, forks=3)
    engine = run(target, [request(3)])
    stats, own = engine.stats(), engine.source_stats()["suffix"]
    assert stats.num_draft_tokens == own.num_draft_tokens
    assert stats.num_accepted_tokens == own.num_accepted_tokens
    assert stats.num_emitted_tokens == LENGTH
    assert stats.num_accepted_tokens + len(target.batches) == LENGTH


def test_tokens_of_any_branch_are_marked_as_drafted(still: None) -> None:
    target = FakeTarget(sequences=1, forks=3)
    chunks = []
    engine = Engine(target, "suffix", policy=AutoPolicy(costs=FLAT))
    answer: Generation = engine.submit(request(3), chunks.append)
    while engine.step():
        pass
    assert target.adopted > 0
    accepted = [
        flag
        for chunk in chunks
        for flag in [True] * chunk.num_accepted
        + [False] * (len(chunk.token_ids) - chunk.num_accepted)
    ]
    assert accepted == list(answer.accepted)
    assert sum(answer.accepted) == engine.stats().num_accepted_tokens


@pytest.mark.parametrize(
    ("tree", "options", "branches", "note"),
    [
        ("auto", {}, 4, ""),
        ("off", {}, 1, ""),
        (1, {}, 1, ""),
        (3, {}, 3, ""),
        ("auto", {"policy": AutoPolicy(fixed=8)}, 1, ""),
        (
            "auto",
            {"policy": AutoPolicy(8, gate=True), "max_branches": 1},
            1,
            "this target knows none",
        ),
        ("auto", {"max_branches": 1}, 1, "this target knows none"),
        ("auto", {"max_branches": 2}, 2, ""),
        (1, {"max_branches": 1}, 1, ""),
    ],
)
def test_what_drafts_says_how_many_branches(
    tree: int | str, options: dict[str, Any], branches: int, note: str
) -> None:
    policy = options.pop("policy", "auto")
    engine = Engine(FakeTarget(**options), "suffix", policy=policy, tree=tree)
    drafting = engine.drafting()
    assert drafting.branches == branches
    assert drafting.as_json()["branches"] == branches
    assert note in "; ".join(drafting.notes)
    assert ("branches" in "; ".join(drafting.notes)) == bool(note)


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        (0, {}, 'tree must be "auto", "off" or a number >= 1, got 0'),
        ("on", {}, "tree must be .* got 'on'"),
        (True, {}, "tree must be .* got True"),
        (5, {}, "a draft may have at most 4 branches, got 5"),
        (
            2,
            {"policy": AutoPolicy(8, gate=True)},
            "drafts cannot have 2 branches: only the policy auto chooses",
        ),
        (2, {"max_branches": 1}, "drafts cannot have 2 branches: this target knows none"),
    ],
)
def test_a_number_that_cannot_be_had_is_refused(
    tree: Any, options: dict[str, Any], message: str
) -> None:
    policy = options.pop("policy", "auto")
    with pytest.raises(InputError, match=message):
        Engine(FakeTarget(**options), "suffix", policy=policy, tree=tree)


def test_a_branch_that_may_not_be_sent_takes_no_other_with_it(still: None) -> None:
    """After 1 2 3 came the end token twice and 4 once: drafts hold no end token, but 4 they do."""

    class Counting(FakeTarget):
        def next_token(self, tokens: list[int]) -> int:
            return tokens[-1] + 1

    target = Counting(sequences=1)
    prompt = [1, 2, 3, 0, 9, 1, 2, 3, 0, 8, 1, 2, 3, 4, 5, 6, 7, 1, 2]
    engine = Engine(target, "suffix", policy=AutoPolicy(costs=FLAT))
    sampling = Sampling(temperature=0.0)
    one = engine.generate([Request(prompt_ids=int32(prompt), sampling=sampling, max_tokens=40)])[0]
    assert list(one.token_ids) == list(range(3, 43))
    assert engine.stats().num_accepted_tokens == 4


def paths(claims: Any, parents: Any) -> set[tuple[float, ...]]:
    """Return the claims on the way from the text to each token of a tree."""
    ways: list[tuple[float, ...]] = []
    for claim, parent in zip(claims.tolist(), parents.tolist(), strict=True):
        ways.append((*(ways[parent] if parent >= 0 else ()), claim))
    return set(ways)


@pytest.mark.parametrize("length", [52, 67, 82])
def test_a_tree_that_the_pass_has_no_room_for_keeps_its_branches(still: None, length: int) -> None:
    """A draft model is told of all that was drafted; here prompts of other slots fill the pass."""
    target = FakeTarget(sequences=4, max_batch=10, forks=3)
    policy, params = AutoPolicy(costs=FLAT), {"suffix": {"share": False}}
    engine = Engine(target, "suffix", slots=4, policy=policy, params=params)
    (drafter,) = engine.drafters.of_namespace("")
    offered: list[tuple[Any, Any, Any]] = []  # text, claims and parents of the first draft of all
    decode = target.decode

    def noting(batch: Batch, rows: Rows) -> None:
        if drafter.length(0) and not offered and drafter.offered(0).size:
            tree = drafter.history(0), drafter.offered(0), drafter.offered_parents(0)
            offered.append(tree)
        decode(batch, rows)

    target.decode = noting  # type: ignore[method-assign]
    for number in range(4):
        prompt = [3 + number, 5, 7]
        prompt += target.expected(prompt, length + number)
        engine.submit(Request(prompt_ids=int32(prompt), max_tokens=8))
    while engine.step():
        pass
    ((text, claims, parents),) = offered
    whole = create_drafter("suffix", share=False)
    whole.begin(0, text)
    _, all_parents, all_claims = whole.propose_tree(0, 64)
    assert paths(claims, parents) <= paths(all_claims, all_parents)
