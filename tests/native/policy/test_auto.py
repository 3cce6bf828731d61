"""AutoPolicy: lengths from worths and prices, what it learns of costs and sources, its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.errors import InputError

FLAT = CostTable(((1, 1.0), (2, 1.001)), "flat")  # further tokens cost next to nothing
DEAR = CostTable(((1, 1.0), (2, 1.9)), "dear")  # nine tenths of a pass each
LINE = CostTable(((1, 1.0), (2, 1.3)), "line")
JUMP = CostTable((*((b, 0.5 * b) for b in range(1, 64)), (64, 8.0), (65, 8.1)), "jump")


def claims(*p: float) -> np.ndarray:
    return np.array(p, dtype=np.float32)


def sure(n: int, p: float = 0.98) -> np.ndarray:
    return np.full(n, p, dtype=np.float32)


def learnt(policy: AutoPolicy, claim: float, truth: float, times: int, length: int = 8) -> None:
    """Let a source "a" make chains of one claim, right to a share."""
    rng = np.random.default_rng(0)
    for _ in range(times):
        wrong = np.flatnonzero(rng.random(length) >= truth)
        right = int(wrong[0]) if len(wrong) else length
        policy.learn(0, "a", sure(length, claim), right, min(right + 1, length))


def test_cheap_tokens_are_sent_while_they_may_be_right_and_dear_ones_only_when_sure() -> None:
    chain = claims(0.99, 0.98, 0.97, 0.3, 0.2)
    assert AutoPolicy(costs=FLAT).choose(0, "a", chain, 64) == 5
    assert AutoPolicy(costs=LINE).choose(0, "a", chain, 64) == 3
    assert AutoPolicy(costs=DEAR).choose(0, "a", chain, 64) == 2
    assert AutoPolicy(costs=DEAR).choose(0, "a", claims(0.8, 0.8, 0.8), 64) == 0
    assert AutoPolicy(costs=FLAT).choose(0, "a", claims(0.0, 0.9), 64) == 0


def test_a_token_that_the_next_pass_gets_as_cheaply_is_not_sent_now() -> None:
    # Each pass takes what is likely of the chain and leaves the rest to the next one.
    policy = AutoPolicy(costs=LINE)
    assert policy.choose(0, "a", sure(40, 0.8), 64) == 3
    greedy = max(range(40), key=lambda k: (1 - 0.8 ** (k + 1)) / 0.2 - 0.3 * k)
    assert greedy == 5


def test_lengths_stay_within_room_chain_and_max_draft() -> None:
    chain = sure(30, 1.0)
    for room in (-3, 0, 1, 7, 30, 99):
        assert AutoPolicy(costs=FLAT).choose(0, "a", chain, room) == max(0, min(room, 30))
    assert AutoPolicy(max_draft=5, costs=FLAT).choose(0, "a", chain, 99) == 5
    assert AutoPolicy(costs=FLAT).choose(0, "a", claims(), 9) == 0


def test_equal_values_give_the_shortest_draft() -> None:
    free = CostTable(((1, 1.0),))  # all passes cost the same
    assert AutoPolicy(costs=free).choose(0, "a", claims(1.0, 0.0, 1.0), 9) == 1
    assert AutoPolicy(costs=free).choose(0, "a", claims(0.0, 0.0), 9) == 0


def test_a_chain_of_one_token_is_sent_when_it_is_worth_its_price() -> None:
    level = CostTable(((1, 1.3), (8, 3.4), (9, 2.0), (40, 2.5)))  # the tenth token costs 0.016
    policy = AutoPolicy(costs=level)
    lengths = [policy.choose(0, "a", claims(p), 1, 9, 4) for p in (0.01, 0.02, 0.04)]
    assert lengths == [0, 1, 1]


def test_costs_need_not_rise() -> None:
    policy = AutoPolicy(costs=JUMP)  # no token is cheaper with others until there are 64
    assert policy.choose(0, "a", sure(64, 0.95), 64) == 63
    assert policy.choose(0, "a", sure(64, 0.95), 62) == 0
    assert policy.choose(0, "a", sure(64, 0.9), 64, batch_tokens=8) == 56


def test_off_and_fixed() -> None:
    off = AutoPolicy(max_draft=0)
    assert (off.limit(0, "a"), off.choose(0, "a", sure(9), 9)) == (0, 0)
    fixed = AutoPolicy(fixed=6, costs=DEAR)
    assert fixed.limit(3, "a") == 6
    assert [fixed.choose(0, "a", sure(n, 0.01), room) for n, room in ((9, 9), (4, 9), (9, 3))] == [
        6,
        4,
        3,
    ]
    assert fixed.choose_many([("a", sure(9), 9)] * 3, capacity=13) == [6, 4, 0]
    assert AutoPolicy(max_draft=20).limit(0, "a") == 20


def test_one_of_many_chooses_as_alone() -> None:
    for table in (FLAT, LINE, DEAR, JUMP):
        for p in (0.2, 0.6, 0.9, 0.99):
            policy = AutoPolicy(costs=table)
            lengths = policy.choose_many([("a", sure(24, p), 20)], capacity=99)
            assert lengths == [policy.choose(0, "a", sure(24, p), 20)]


def test_what_pads_all_rows_is_paid_for_by_all_drafts() -> None:
    # A place costs four rows a pass's 1.2 tokens: more than one row can gain there.
    policy, long, short = AutoPolicy(costs=LINE), ("a", sure(8), 64), ("a", sure(3), 64)
    none = [("a", claims(), 64)] * 2
    for chains, free, padded in (
        ([long, ("a", claims(), 64)], [8, 0], [0, 0]),
        ([long, long], [8, 8], [8, 8]),
        ([long, short], [8, 3], [3, 3]),
    ):
        assert policy.choose_many([*chains, *none], 99) == [*free, 0, 0]
        assert policy.choose_many([*chains, *none], 99, padded_rows=4) == [*padded, 0, 0]
    # Rows that have ended are computed, too.
    assert policy.choose_many([long, long], 99, padded_rows=2) == [8, 8]
    assert policy.choose_many([long, long], 99, padded_rows=9) == [0, 0]
    fixed = AutoPolicy(fixed=2, costs=DEAR)
    assert fixed.choose_many([long, none[0]], 999, padded_rows=99) == [2, 0]


def test_a_streak_bounds_one_of_many_as_it_bounds_one() -> None:
    policy, sure_ones = AutoPolicy(costs=LINE), ("a", sure(40, 0.99), 40)
    for streak in (None, 0, 9, 200):
        alone = policy.choose(0, *sure_ones, streak=streak)
        assert policy.choose_many([sure_ones], capacity=99, streaks=[streak]) == [alone]
    lengths = policy.choose_many([sure_ones] * 2, capacity=99, streaks=[0, 200])
    assert 0 < lengths[0] < lengths[1], "each slot has its own"
    with pytest.raises(InputError, match="streaks must have one entry per chain, 2, got 1"):
        policy.choose_many([sure_ones] * 2, capacity=99, streaks=[0])


def test_many_share_the_capacity_and_the_surest_come_first() -> None:
    policy = AutoPolicy(costs=FLAT)
    chains = [("a", sure(30, p), 64) for p in (0.9, 0.999, 0.95)]
    lengths = policy.choose_many(chains, capacity=3 + 40)
    assert sum(lengths) <= 40
    assert lengths[1] == 30
    assert lengths == policy.choose_many(chains, capacity=3 + 40)
    assert policy.choose_many(chains, capacity=3) == [0, 0, 0]
    assert policy.choose_many(chains, capacity=0) == [0, 0, 0]
    assert policy.choose_many([], capacity=9) == []
    assert policy.choose_many([("a", claims(), 9), ("a", sure(4), 0)], capacity=99) == [0, 0]


def test_long_drafts_of_all_are_found_where_none_pays_alone() -> None:
    # Each token loads more of the model until all of it is there: then tokens are free.
    loads = CostTable(tuple((b, 1 + 9 * (1 - 0.94**b)) for b in range(1, 400)))
    policy = AutoPolicy(costs=loads)
    policy.step(30, 8)  # eight slots, so far without much luck
    assert policy.choose(0, "a", sure(40, 0.9), 40, batch_tokens=8, decoding=8) < 20
    assert min(policy.choose_many([("a", sure(40, 0.97), 40)] * 8, capacity=999)) > 20


def test_the_rate_makes_time_dearer() -> None:
    policy = AutoPolicy(costs=LINE)
    assert policy.rate == pytest.approx(1.0)
    claims = np.concatenate([sure(6, 0.99), sure(6, 0.55)])  # in the end they hardly pay
    before = policy.choose(0, "a", claims, 64)
    for _ in range(200):
        policy.step(9, 9)
    assert policy.rate == pytest.approx(9 / LINE.cost(9), rel=0.05)
    assert policy.choose(0, "a", claims, 64) == 6 < before
    rate = policy.rate
    policy.step(0, 9)
    assert policy.rate == rate


@pytest.mark.parametrize("room", [40, 64])
def test_the_rest_of_a_copy_is_sent_though_it_brings_less_than_what_came_before(room: int) -> None:
    """Costs flatten, so whole drafts paid best: less room does not make it pay to wait."""
    flat = CostTable(tuple((n, 0.4 + 19.2 * (1 - (31 / 32) ** n)) for n in range(1, 66)))
    policy = AutoPolicy(costs=flat)
    for _ in range(200):
        policy.step(65, 65)
    assert policy.rate > (1 + room) / flat.cost(1 + room) or room == 64
    assert policy.choose(0, "a", sure(64, 1.0), room) == room
    offers = [("a", sure(64, 1.0), room)] * 2
    for _ in range(200):
        policy.step(130, 130)
    assert policy.choose_many(offers, capacity=1000) == [room, room]


def test_honest_claims_stay_as_they_are() -> None:
    policy = AutoPolicy()
    for p in (0.02, 0.2, 0.5, 0.9, 0.99, 1.0, 0.0):
        assert policy.calibrated("a", sure(6, p)) == pytest.approx(float(np.float32(p)))
    learnt(policy, 0.7, 0.7, 2000)
    assert policy.calibrated("a", sure(6, 0.7)) == pytest.approx(0.7, abs=0.07)


@pytest.mark.parametrize(("claim", "truth"), [(0.9, 0.1), (0.3, 0.95), (0.999, 0.8), (0.0, 0.5)])
def test_claims_are_learnt_wherever_between_two_levels_they_lie(claim: float, truth: float) -> None:
    policy = AutoPolicy()
    learnt(policy, claim, truth, 4000, length=3)
    assert policy.calibrated("a", sure(2, claim)) == pytest.approx(truth, abs=0.08)
    assert policy.calibrated("b", sure(2, claim)) == pytest.approx(float(np.float32(claim)))


def test_places_in_the_chain_are_told_apart() -> None:
    policy = AutoPolicy()
    for _ in range(400):
        policy.learn(0, "a", sure(4, 0.9), 1, 2)  # the second token is never right
    first, second, third, _ = policy.calibrated("a", sure(4, 0.9))
    assert (first > 0.95, second < 0.1) == (True, True)
    assert third == pytest.approx(second)  # never seen: taken from the place before


def test_tokens_behind_the_first_wrong_one_teach_nothing() -> None:
    one, other = AutoPolicy(), AutoPolicy()
    for _ in range(20):
        one.learn(0, "a", sure(8, 0.8), 1, 8)
        other.learn(0, "a", sure(2, 0.8), 1, 2)
        other.learn(0, "a", claims(), 0, 0)
    assert (one.calibrated("a", sure(8)) == other.calibrated("a", sure(8))).all()


def test_begin_and_record_change_nothing() -> None:
    policy = AutoPolicy()
    learnt(policy, 0.9, 0.4, 50)
    before = (policy.rate, policy.calibrated("a", sure(9)).tolist(), policy.costs())
    policy.begin(0)
    policy.record(0, "a", 8, 0)
    assert before == (policy.rate, policy.calibrated("a", sure(9)).tolist(), policy.costs())


BAD: list[tuple[str, Callable[[AutoPolicy], Any]]] = [
    ("max_draft must be", lambda _: AutoPolicy(max_draft=-1)),
    ("max_draft must be", lambda _: AutoPolicy(max_draft=1025)),
    ("fixed must be", lambda _: AutoPolicy(max_draft=8, fixed=9)),
    ("fixed must be", lambda _: AutoPolicy(fixed=-1)),
    ("costs must be a CostTable", lambda _: AutoPolicy(costs=[1.0])),  # type: ignore[arg-type]
    ("slot must be", lambda p: p.begin(-1)),
    ("slot must be", lambda p: p.limit(-1, "a")),
    ("slot must be", lambda p: p.choose(-1, "a", sure(1), 1)),
    ("slot must be", lambda p: p.learn(-1, "a", sure(1), 0, 0)),
    ("slot must be", lambda p: p.record(-1, "a", 0, 0)),
    ("1 <= decoding <= batch", lambda p: p.choose(0, "a", sure(1), 1, 0)),
    ("1 <= decoding <= batch", lambda p: p.choose(0, "a", sure(1), 1, 3, 4)),
    ("1 <= decoding <= batch", lambda p: p.choose(0, "a", sure(1), 1, 1, 0)),
    ("1 <= decoding <= batch", lambda p: p.choose_many([("a", sure(1), 1)], 9, -1)),
    ("1 <= decoding <= batch", lambda p: p.choose_many([("a", sure(1), 1)], 9, 0, -1)),
    ("batch_tokens <= 1073741824", lambda p: p.choose(0, "a", sure(1), 1, (1 << 63) - 30)),
    ("batch_tokens <= 1073741824", lambda p: p.choose_many([("a", sure(1), 1)], 9, 1 << 62)),
    ("batch_tokens <= 1073741824", lambda p: p.best([("a", sure(1), 1)], (1 << 30) + 1)),
    ("float32 array", lambda p: p.choose(0, "a", np.ones(3), 1)),
    ("float32 array", lambda p: p.choose(0, "a", [0.5], 1)),  # type: ignore[arg-type]
    ("float32 array", lambda p: p.choose(0, "a", sure(6)[::2], 1)),
    ("float32 array", lambda p: p.choose(0, "a", None, 1)),  # type: ignore[arg-type]
    ("at position 1", lambda p: p.choose(0, "a", claims(0.5, 1.5), 1)),
    ("at position 0", lambda p: p.choose_many([("a", claims(-0.1), 1)], 9)),
    ("at position 0", lambda p: p.learn(0, "a", claims(float("nan")), 0, 1)),
    ("at position 0", lambda p: p.calibrated("a", claims(2.0))),
    ("0 <= num_right <=", lambda p: p.learn(0, "a", sure(3), 2, 1)),
    ("0 <= num_right <=", lambda p: p.learn(0, "a", sure(3), -1, 1)),
    ("0 <= num_right <=", lambda p: p.learn(0, "a", sure(3), 1, 4)),
    ("emitted must be", lambda p: p.step(-1, 1)),
    ("batch_tokens >= 1", lambda p: p.step(1, 0)),
    (
        "padded_rows must be 0 or in 2..",
        lambda p: p.choose_many([("a", sure(1), 1)] * 2, 9, 0, 0, None, 1),
    ),
    (
        "padded_rows must be 0 or in 1..",
        lambda p: p.choose_many([("a", sure(1), 1)], 9, 0, 0, None, -1),
    ),
    ("got 2147483648", lambda p: p.choose_many([("a", sure(1), 1)], 9, 0, 0, None, 1 << 31)),
    ("must be >= 0, got -1 and 0", lambda p: p.note(-1, 0)),
    ("must be >= 0, got 1 and -2", lambda p: p.note(1, -2)),
    ("tokens must be >= 1", lambda p: p.cost(0)),
    ("seconds must be finite and >= 0", lambda p: p.spend(-1.0)),
    ("seconds must be finite and >= 0", lambda p: p.spend(float("inf"))),
]


@pytest.mark.parametrize(("message", "call"), BAD)
def test_bad_arguments_are_refused(message: str, call: Callable[[AutoPolicy], Any]) -> None:
    with pytest.raises(InputError, match=message):
        call(AutoPolicy())


def test_a_streak_is_a_number_of_tokens() -> None:
    claims = np.full(8, 0.9, np.float32)
    with pytest.raises(InputError, match="streak must be >= 0 or None, got -1"):
        AutoPolicy().choose(0, "a", claims, 8, streak=-1)
    with pytest.raises(InputError, match="streak must be >= 0 or None, got -2"):
        AutoPolicy().choose_tree(0, "a", claims, np.full(8, -1, np.int32), 8, streak=-2)


def test_sizes_that_a_table_lists_are_not_tried_to_learn_what_they_cost() -> None:
    def lengths(costs: CostTable | None) -> list[int]:
        policy, sizes = AutoPolicy(costs=costs), []
        for _ in range(64):
            sizes.append(policy.choose(0, "a", claims(0.95), 1))
            policy.observe(1 + sizes[-1], 1.0 + 1.5 * sizes[-1])
            policy.step(1, 1 + sizes[-1])
        return sizes

    assert sum(lengths(None)) > 0
    assert sum(lengths(CostTable(((1, 1.0), (2, 2.5))))) == 0
