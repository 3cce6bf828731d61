"""What a drafter takes from rows of logits, and which rows it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ngramspec import SuccessorPool, create_drafter
from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.recycle.drafter import RecycleSource
from ngramspec.errors import InputError, StateError
from ngramspec.models import successor_claims

LOGITS = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-30, 30, width=32),
    st.sampled_from([np.nan, np.inf, -np.inf, 1e30, -1e30]),
)


def begun(prompt: list[int], top: int = 8, **params: Any) -> tuple[Drafter, SuccessorPool]:
    pool = SuccessorPool(256, top)
    drafter = create_drafter("recycle", pool=pool, min_probability=0.0, **params)
    drafter.begin(0, prompt)
    return drafter, pool


def expected(row: np.ndarray, top: int) -> tuple[list[int], np.ndarray]:
    """The likeliest tokens by sorting, and their probabilities in 64 bits."""
    values = np.minimum(row.astype(np.float64), 1e30)
    values[np.isnan(values)] = -np.inf
    order = np.argsort(-values, kind="stable")[:top]
    order = order[values[order] > -np.inf]
    if not len(order):
        return [], np.empty(0)
    p = np.exp(values - values[order[0]])
    return order.tolist(), p[order] / p.sum()


def check_row(row: np.ndarray, top: int = 8) -> None:
    drafter, pool = begun([7], top)
    drafter.observe_logits(0, row[None, :])
    tokens, p = pool.successors([7])
    ids, likely = expected(row, top)
    assert tokens.tolist() == ids[: len(tokens)]
    assert p == pytest.approx(likely[: len(p)], abs=2e-5, rel=2e-4)
    assert (likely[len(p) :] < 1e-5).all()  # nothing that 16 bits can hold is missing
    assert pool.check() == ""


@given(row=st.lists(LOGITS, min_size=1, max_size=70), top=st.integers(1, 16))
@example(row=[np.inf, 1e30], top=2)
def test_ties_infinities_and_nan(row: list[float], top: int) -> None:
    check_row(np.array(row, np.float32), top)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1023, 1024, 1025, 4096, 32_000, 150_001])
@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal"])
def test_rows_of_any_length_and_order(n: int, order: str) -> None:
    row = np.random.default_rng(n).normal(scale=4, size=n).astype(np.float32)
    if order == "equal":
        row[:] = 1.5
    elif order != "random":
        row = np.sort(row)[:: 1 if order == "rising" else -1].copy()
    check_row(row)


def test_no_token_is_likely_where_all_are_masked() -> None:
    for value in (np.nan, -np.inf):
        drafter, pool = begun([7])
        drafter.observe_logits(0, np.full((1, 50), value, np.float32))
        assert (pool.num_entries, drafter.propose(0, 4).tolist()) == (0, [])


def peak(*tokens: int) -> np.ndarray:
    """Rows that hold one token each for nearly certain."""
    rows = np.zeros((len(tokens), 20), np.float32)
    rows[np.arange(len(tokens)), tokens] = 12
    return rows


def likeliest(pool: SuccessorPool, *context: int) -> int | None:
    tokens, _ = pool.successors(list(context))
    return int(tokens[0]) if len(tokens) else None


def test_rows_follow_the_newest_token_and_the_drafted_ones() -> None:
    drafter, pool = begun([1, 2])
    drafter.observe_logits(0, peak(3))
    drafter.observe_logits(0, peak(4, 5), first=0)
    assert [likeliest(pool, 1, 2), likeliest(pool, 2), likeliest(pool, 1)] == [5, 5, 4]
    pool.clear()
    drafter.observe_logits(0, peak(3))
    drafter.accept(0, [3], 0)
    drafter.observe_logits(0, peak(4))
    drafter.begin(0, [1, 2])
    assert drafter.propose(0, 2).tolist() == [3, 4]
    drafter.observe_logits(0, peak(3, 6, 9))
    assert (likeliest(pool, 2, 3), likeliest(pool, 3, 4), likeliest(pool, 4)) == (6, 9, 9)


def test_rows_of_a_tree_follow_their_nodes() -> None:
    drafter, pool = begun([1, 2])
    row = np.zeros((1, 20), np.float32)
    row[0, [3, 4]] = 12, 11.5
    drafter.observe_logits(0, row)
    tokens, parents, _ = drafter.propose_tree(0, 2)
    assert (tokens.tolist(), parents.tolist()) == ([3, 4], [-1, -1])
    drafter.observe_logits(0, peak(5, 6, 7))
    assert [likeliest(pool, 2, 3), likeliest(pool, 2, 4)] == [6, 7]
    assert likeliest(pool, 3, 4) is None
    drafter.accept(0, [4, 7], 1)
    assert drafter.history(0).tolist() == [1, 2, 4, 7]


def test_what_one_slot_saw_another_drafts() -> None:
    pool = SuccessorPool(256)
    for name in ("first", "second"):
        drafter = create_drafter("recycle", slots=2, pool=pool)
        drafter.begin(1, [1, 2])
        assert drafter.propose(1, 1).tolist() == ([] if name == "first" else [3])
        drafter.begin(0, [1, 2])
        drafter.observe_logits(0, peak(3))
        assert drafter.propose(1, 1).tolist() == [3]


def test_one_token_as_key_ignores_the_one_before() -> None:
    drafter, pool = begun([1, 2], key_tokens=1)
    drafter.observe_logits(0, peak(3))
    assert (likeliest(pool, 1, 2), likeliest(pool, 2)) == (None, 3)
    drafter.begin(0, [9, 2])
    assert drafter.propose(0, 1).tolist() == [3]


def test_positions_that_the_slot_no_longer_holds_are_passed_over() -> None:
    drafter, pool = begun(list(range(3000)), max_history=1024)
    rows = np.repeat(peak(3), 3000, axis=0)
    drafter.observe_logits(0, rows, first=0)
    held = len(drafter.history(0))
    assert 0 < pool.num_observed <= 2 * held
    assert likeliest(pool, 0) is None


def test_views_are_read_in_place_and_nothing_else_is_taken() -> None:
    drafter, pool = begun([1, 2])
    frozen = peak(3)
    frozen.flags.writeable = False
    drafter.observe_logits(0, frozen)
    assert likeliest(pool, 2) == 3
    for wrong in (peak(3)[0], peak(3).astype(np.float64), peak(3, 4)[:, ::2], None, [[1.0]]):
        with pytest.raises(InputError, match="logits must be a float32 array of shape"):
            drafter.observe_logits(0, wrong)  # type: ignore[arg-type]


def test_more_rows_than_the_pass_can_have_are_refused() -> None:
    drafter, pool = begun([1, 2])
    with pytest.raises(InputError, match="at most 1 rows, one after the slot's newest token"):
        drafter.observe_logits(0, peak(3, 4))
    with pytest.raises(InputError, match="at most 1 rows, as the request has 2 tokens, got 2"):
        drafter.observe_logits(0, peak(3, 4), first=1)
    with pytest.raises(InputError, match="first must be a position of the request, got 3"):
        drafter.observe_logits(0, peak(3), first=3)
    with pytest.raises(StateError, match="observe_logits"):
        create_drafter("recycle").observe_logits(0, peak(3))
    with pytest.raises(InputError, match="slot must be"):
        drafter.observe_logits(1, peak(3))
    assert pool.num_observed == 0


def test_what_a_device_reduced_is_checked() -> None:
    drafter, pool = begun([1, 2])
    ids, logs = np.array([[3, 4]], np.int32), np.array([[-0.1, -3.0]], np.float32)
    drafter.observe_top(0, ids, logs)
    tokens, p = pool.successors([2])
    assert tokens.tolist() == [3, 4]
    assert p == pytest.approx(np.exp([-0.1, -3.0]), abs=1e-5)
    for wrong in (ids.astype(np.int64), ids[0], -ids):
        with pytest.raises(InputError, match="token_ids must"):
            drafter.observe_top(0, wrong, logs)
    with pytest.raises(InputError, match="logprobs must be a float32"):
        drafter.observe_top(0, ids, logs.astype(np.float64))
    with pytest.raises(InputError, match="must have the same shape"):
        drafter.observe_top(0, ids, logs[:, :1].copy())
    for values in ([-3.0, -0.1], [0.5, -1.0], [np.nan, -1.0]):
        with pytest.raises(InputError, match="at most 0 and fall along each row"):
            drafter.observe_top(0, ids, np.array([values], np.float32))


def test_a_row_with_the_same_token_twice_is_refused() -> None:
    drafter, pool = begun([1, 2, 3], top=3)
    ids = np.array([[5, 6, 7, 5], [5, 6, 7, 8], [8, 4, 4, 9]], np.int32)
    logs = np.full(ids.shape, -1.0, np.float32)
    with pytest.raises(
        InputError, match=r"token_ids must differ .*, got 4 at \(2, 1\) and \(2, 2\)"
    ):
        drafter.observe_top(0, ids, logs, first=0)
    assert pool.num_observed == 0
    drafter.observe_top(0, ids[:2].copy(), logs[:2].copy(), first=0)  # of a row only 3 are taken
    assert pool.successors([1])[0].tolist() == [5, 6, 7]
    assert pool.check() == ""


def test_sources_without_interest_take_nothing() -> None:
    drafter = create_drafter("ngram-simple")
    drafter.begin(0, [1, 2])
    drafter.observe_logits(0, peak(3))
    assert drafter.propose(0, 4).tolist() == []
    with pytest.raises(InputError, match="at most 1 rows"):
        drafter.observe_logits(0, peak(3, 4))


@pytest.mark.parametrize(
    "wrong", [{"capacity": 63}, {"capacity": 1 << 27}, {"top": 0}, {"top": 17}]
)
def test_a_pool_has_bounds(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        SuccessorPool(**wrong)


def test_a_full_pool_keeps_what_is_seen_often() -> None:
    pool = SuccessorPool(64)
    drafter = create_drafter("recycle", pool=pool, key_tokens=1)
    assert (pool.capacity, pool.nbytes) == (64, 64 * 64)
    for token in range(1000):
        drafter.begin(0, [5, token + 10])
        drafter.observe_logits(0, peak(3, 4), first=0)
    assert pool.num_entries == pool.capacity
    assert pool.num_evicted > 900
    assert likeliest(pool, 5) == 3
    assert pool.check() == ""
    with pytest.raises(InputError, match="1 or 2 tokens"):
        pool.successors([1, 2, 3])


def test_claims_follow_what_comes_true() -> None:
    """A likely successor that is always wrong loses its claim, another gains it."""
    drafter, _ = begun([1])
    for step in range(60):
        drafter.begin(0, [1])
        drafter.observe_top(
            0, np.array([[3, 4]], np.int32), np.log(np.array([[0.6, 0.3]], np.float32))
        )
        tokens, _, claims = drafter.propose_tree(0, 2)
        if step in (0, 59):
            claim_of = dict(zip(tokens.tolist(), claims.tolist(), strict=True))
            assert (claim_of[3] > claim_of[4]) == (step == 0)
        drafter.accept(0, [4], int(tokens[0] == 4))


def test_considered_says_what_accept_learns() -> None:
    """A row for each successor after the text and after tokens that came true."""
    claims = successor_claims()
    source = RecycleSource(1, SuccessorPool(1024, 2), 64, 0.0, True, claims)
    drafter = Drafter([source], 1)
    rows = np.log(np.array([[0.6, 0.3]], np.float32))
    for last, likely in ((1, [3, 4]), (3, [5, 6]), (4, [7, 8])):
        drafter.begin(0, [last])
        drafter.observe_top(0, np.array([likely], np.int32), rows)
    drafter.begin(0, [9])
    assert all(len(part) == 0 for part in source.considered(0, np.array([3], np.int32)))
    drafter.begin(0, [1])
    drafter.propose_tree(0, 8)
    classes, right = source.considered(0, np.array([3, 6, 0], np.int32))
    assert right.tolist()[:4] == [True, False, False, True]
    assert classes.dtype == np.uint16
    assert classes.max() < claims.size
    assert source.considered(0, np.array([4], np.int32))[1].tolist() == [False, True]
    with pytest.raises(InputError, match=r"slot must be in 0\.\.0, got 1"):
        source.considered(1, np.array([3], np.int32))


def test_claims_of_another_shape_are_refused() -> None:
    """They belong to classes."""
    with pytest.raises(InputError, match="claims must have the shape"):
        RecycleSource(1, SuccessorPool(1024, 2), 64, 0.0, True, np.zeros(9, np.uint16))
