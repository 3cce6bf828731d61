"""What is sent of a free draft and of one that took time: beside the slow twin, and by example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec._native.policy.arbiter import Arbiter, FreeDraft, Mixed, Terms
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import PROFILES, CostTable
from ngramspec.errors import InputError
from reference import auto, mixture

FLAT = CostTable(((1, 1.0), (64, 1.05)))
DEAR = CostTable(((1, 1.0), (2, 1.6)))
LINE = CostTable(((1, 1.0), (2, 1.1)))


def floats(*p: float) -> np.ndarray:
    return np.array(p, np.float32)


def ints(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def arbiter_of(table: CostTable) -> Arbiter:
    arbiter = Arbiter(AutoPolicy(64, table))
    arbiter.price("model", 0.05, 0.05)
    return arbiter


@st.composite
def drafts(draw: st.DrawFn) -> tuple[mixture.Both, int]:
    """Two drafts of few kinds of tokens, so that they often agree."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n = int(rng.integers(1, 14))
    chain = rng.random() < 0.3
    parents, tokens = list[int](), list[int]()
    for i in range(n):
        parent = i - 1 if chain else int(rng.integers(max(-1, i - 4), i))
        taken = [tokens[j] for j in range(i) if parents[j] == parent]
        parents.append(parent)
        tokens.append(int(rng.choice([t for t in range(20) if t not in taken][:3])))
    p = rng.beta(2, 1, n).astype(np.float32)
    for parent in {*parents}:
        own = [i for i in range(n) if parents[i] == parent]
        p[own] /= max(1.0, p[own].sum() * 1.01)
    sent = int(rng.integers(1, n + 1))
    claims = [float(x) for x in p]
    after = bool(rng.random() < 0.4)
    start = mixture.start_of(claims, parents, sent, after)
    k = int(rng.integers(1, 7))
    q = [float(x) for x in rng.beta(3, 1, k).astype(np.float32)]
    draft = rng.integers(0, 3, k).tolist()
    return mixture.Both(claims, parents, tokens[:sent], q, draft, start), int(rng.integers(0, 9))


@given(
    case=drafts(),
    table=st.sampled_from([FLAT, LINE, DEAR, *PROFILES.values()]),
    batch=st.sampled_from([(1, 1), (9, 8), (30, 2)]),
    branches=st.integers(1, 5),
    emitted=st.integers(1, 5),
    apart=st.integers(0, 6),
)
def test_any_two_drafts_give_the_twins_choice(
    case: tuple[mixture.Both, int],
    table: CostTable,
    batch: tuple[int, int],
    branches: int,
    emitted: int,
    apart: int,
) -> None:
    both, more = case
    room = len(both.tokens) + more
    native, slow = arbiter_of(table), auto.AutoPolicy(64, table)
    native.policy.step(emitted, 1)
    slow.step(emitted, 1)
    expected = native.expected(0, "model", 1)[0]
    for _ in range(apart):
        native.learn(0, "model", 0, 1, True)
        expected = native.expected(0, "model", 1)[0]
    assert 0 < expected < 1
    sent = native.mix(
        "model",
        floats(*both.q),
        ints(*both.draft),
        both.start >= 0,
        FreeDraft("free", floats(*both.p), ints(*both.tokens), ints(*both.parents)),
        Terms(room, 64, *batch, branches),
    )
    base, decoding = batch
    rate = max(slow.speed, decoding / slow.costs.at(base))
    factor = 1.0 if both.start >= 0 else apart_of(apart)
    price = lambda k: slow.prices(base, decoding, k, rate)[k]  # noqa: E731
    worths = mixture.mix(both, factor, price, room, branches)
    trees = {pair: mixture.sent_tree(both, *pair) for pair in worths}
    mine = [
        worths[pair]
        for pair, tree in trees.items()
        if tree == (sent.tokens.tolist(), sent.parents.tolist()) and pair[0] == sent.num_free
    ]
    assert mine, "a draft that may not be sent"
    assert mine[0] == pytest.approx(max(worths.values()), abs=1e-6)


def apart_of(times: int) -> float:
    """What the arbiter knows after its source was wrong so often where a free draft was, too."""
    arbiter = arbiter_of(LINE)
    seen = 0.0
    for _ in range(times):
        seen = 0.99 * seen + float(arbiter.expected(0, "model", 1)[0])
        arbiter.learn(0, "model", 0, 1, True)
    return 4 / (seen + 4)


def mixed(table: CostTable, *arguments: Any, branches: int = 4, room: int = 64) -> Mixed:
    return arbiter_of(table).mix("model", *arguments, Terms(room, branches=branches))


SPLIT = FreeDraft("free", floats(0.5, 0.9), ints(7, 8))


def test_a_branch_stands_beside_a_free_draft_that_says_otherwise() -> None:
    sent = mixed(FLAT, floats(0.8, 0.9), ints(1, 2), False, SPLIT)
    assert sent.tokens.tolist() == [7, 8, 1, 2]
    assert sent.parents.tolist() == [-1, 0, -1, 2]
    assert sent.num_free == 2


def test_it_takes_the_place_of_the_free_draft_where_there_can_be_but_one() -> None:
    sent = mixed(FLAT, floats(0.8, 0.9), ints(1, 2), False, SPLIT, branches=1)
    assert (sent.tokens.tolist(), sent.num_free) == ([1, 2], 0)
    sent = mixed(FLAT, floats(0.2, 0.9), ints(1, 2), False, SPLIT, branches=1)
    assert (sent.tokens.tolist(), sent.num_free) == ([7, 8], 2)


def test_tokens_that_both_have_are_sent_once_and_are_the_free_drafts() -> None:
    sent = mixed(FLAT, floats(0.8, 0.9, 0.9), ints(7, 8, 9), False, SPLIT)
    assert sent.tokens.tolist() == [7, 8, 9]
    assert (sent.parents.tolist(), sent.num_free) == ([-1, 0, 1], 2)
    sent = mixed(FLAT, floats(0.8, 0.5), ints(7, 3), False, SPLIT)
    assert (sent.parents.tolist(), sent.num_free) == ([-1, 0, 0], 2)


def test_a_draft_goes_on_where_the_likeliest_path_ends() -> None:
    tree = FreeDraft("free", floats(0.3, 0.6, 0.9), ints(5, 6, 7), ints(-1, -1, 1))
    sent = mixed(FLAT, floats(0.9, 0.9), ints(1, 2), True, tree)
    assert sent.tokens.tolist() == [5, 6, 7, 1, 2]
    assert (sent.parents.tolist(), sent.num_free) == ([-1, -1, 1, 2, 3], 3)
    assert arbiter_of(FLAT).path(tree).tolist() == [1, 2]
    assert arbiter_of(FLAT).path(tree._replace(tokens=ints(5))).tolist() == [0]
    assert arbiter_of(FLAT).path(tree._replace(tokens=ints())).size == 0


def test_what_does_not_pay_is_not_sent() -> None:
    surer, less_sure = (FreeDraft("free", floats(p), ints(7)) for p in (0.9, 0.7))
    sent = mixed(DEAR, floats(0.3, 0.9), ints(1, 2), False, surer)
    assert (sent.tokens.tolist(), sent.num_free) == ([7], 1)
    sent = mixed(DEAR, floats(0.99), ints(1), False, less_sure)
    assert (sent.tokens.tolist(), sent.num_free) == ([1], 0)


def test_a_source_that_finds_the_same_tokens_hard_is_no_branch_for_long() -> None:
    native = arbiter_of(FLAT)
    for _ in range(9):
        native.learn(0, "model", 4, 4)
    terms = Terms(64, 4, branches=4, extends=False)
    assert native.ask(0, "model", SPLIT, terms).beside
    for _ in range(60):
        native.learn(0, "model", 4, 4)
        native.learn(0, "model", 0, 1, True)
        native.learn(0, "model", 4, 4)
    assert not native.ask(0, "model", SPLIT, terms).beside


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ints()}, r"expected 1\.\.2 tokens of a free draft"),
        ({"tokens": ints(1, 2, 3)}, r"expected 1\.\.2 tokens of a free draft"),
        ({"draft": ints(1)}, "as it claims, got 2, 1 and 2"),
        ({"confidence": floats(0.5, 1.5)}, "confidence"),
        ({"claimed": floats(0.5, 1.5)}, "confidence"),
        ({"parents": ints(0, 0)}, "parents"),
        ({"batch_tokens": 0}, "1 <= decoding <= batch_tokens"),
        ({"batch_tokens": 1 << 31}, "batch_tokens <= 1073741824"),
        ({"source": "other"}, "'other' has no price yet"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "source": "model",
        "claimed": floats(0.5, 0.5),
        "draft": ints(1, 2),
        "confidence": floats(0.5, 0.5),
        "parents": None,
        "tokens": ints(7, 8),
        "batch_tokens": 1,
    }

    def mix(source: str, claimed: Any, draft: Any, batch_tokens: int, **free: Any) -> None:
        terms = Terms(9, batch_tokens=batch_tokens)
        arbiter_of(LINE).mix(source, claimed, draft, False, FreeDraft("free", **free), terms)

    mix(**arguments)
    with pytest.raises(InputError, match=message):
        mix(**{**arguments, **change})
    with pytest.raises(InputError, match="at most 2 tokens, got 3"):
        arbiter_of(LINE).path(FreeDraft("free", floats(0.5, 0.5), ints(1, 2, 3), ints(-1, 0)))
