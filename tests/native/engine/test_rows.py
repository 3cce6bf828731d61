"""Rows against numpy: argmax with ties, NaN and infinities, copies, log-probabilities, errors."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.machines import SETTINGS as EXAMPLES
from ngramspec._native.engine.decode import Rows
from ngramspec.errors import InputError

SPECIAL = [0.0, -0.0, 1.0, 1.5, -2.0, 3e38, -3e38, float("inf"), float("-inf"), float("nan")]
LOGITS = st.one_of(st.sampled_from(SPECIAL), st.floats(width=32))


def rows_of(*logits: Any) -> Rows:
    array = np.array(logits, dtype=np.float32)
    rows = Rows(array.shape[1])
    rows.set(array)
    return rows


def reference_argmax(row: np.ndarray) -> int:
    """Return the smallest id of the largest number, 0 when there is no number."""
    if np.isnan(row).all():
        return 0
    return int(np.flatnonzero(row == np.nanmax(row))[0])


@EXAMPLES
@given(st.lists(LOGITS, min_size=1, max_size=150))
def test_argmax_is_the_first_of_the_largest(logits: list[float]) -> None:
    row = np.array(logits, dtype=np.float32)
    assert rows_of(row).argmax(0) == reference_argmax(row)


@EXAMPLES
@given(st.integers(1, 200), st.data())
def test_argmax_finds_ties_in_any_place(size: int, data: st.DataObject) -> None:
    row = np.zeros(size, dtype=np.float32)
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1))
    row[places] = 7.0
    assert rows_of(row).argmax(0) == min(places)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_argmax_without_any_possible_token_is_0(value: float) -> None:
    assert rows_of([value] * 70).argmax(0) == 0


def test_each_row_has_its_own_argmax() -> None:
    logits = np.random.default_rng(0).normal(size=(9, 333)).astype(np.float32)
    rows = Rows(333)
    rows.set(logits)
    assert len(rows) == 9
    assert rows.vocab_size == 333
    assert [rows.argmax(i) for i in range(9)] == logits.argmax(axis=1).tolist()


def test_a_copy_is_independent_and_the_array_is_kept_alive() -> None:
    logits = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = Rows(4)
    rows.set(logits)
    copy = rows.copy(1)
    logits[1] = 0.0
    assert copy.tolist() == [4.0, 5.0, 6.0, 7.0]
    del logits
    gc.collect()
    assert rows.copy(2).tolist() == [8.0, 9.0, 10.0, 11.0]


def test_no_rows_are_shown_before_the_first_decode_and_after_an_empty_one() -> None:
    rows = Rows(4)
    assert len(rows) == 0
    rows.set(np.zeros((2, 4), dtype=np.float32))
    rows.set(np.zeros((0, 4), dtype=np.float32))
    assert len(rows) == 0


@EXAMPLES
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=80),
    st.data(),
)
def test_logprobs_are_those_of_the_softmax(logits: list[float], data: st.DataObject) -> None:
    row = np.array(logits, dtype=np.float32)
    token = data.draw(st.integers(0, row.size - 1))
    top = data.draw(st.integers(0, row.size))
    wide = row.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    logprob, best = rows_of(row).logprobs(0, token, top)
    assert logprob == pytest.approx(expected[token], abs=1e-6)
    assert len(best) == len({token for token, _ in best}) == top
    assert [value for _, value in best] == pytest.approx(np.sort(expected)[::-1][:top], abs=1e-6)
    assert all(value == pytest.approx(expected[token], abs=1e-6) for token, value in best)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("logits", "shares"),
    [
        ([INF, 1.0, 2.0], [1, 0, 0]),
        ([INF, 3e38, INF, -INF], [0.5, 0, 0.5, 0]),
        ([-INF] * 4, [0.25] * 4),
        ([NAN, 1.0, NAN, 1.0], [0, 0.5, 0, 0.5]),
        ([NAN, -INF], [0.5, 0.5]),
        ([NAN, INF], [0, 1]),
        ([NAN] * 2, [0.5, 0.5]),
    ],
)
def test_logprobs_of_no_numbers_and_infinite_ones_are_numbers(
    logits: list[float], shares: list[float]
) -> None:
    """Infinite logits share all of the probability; NaN has none, if any token has."""
    rows, size = rows_of(logits), len(logits)
    logprobs = [rows.logprobs(0, token, size) for token in range(size)]
    assert [math.exp(value) for value, _ in logprobs] == pytest.approx(shares)
    likeliest = [math.exp(value) for _, value in logprobs[0][1]]
    assert likeliest == pytest.approx(sorted(shares, reverse=True))


BAD_CALLS: dict[str, tuple[Callable[[Rows], Any], str]] = {
    "argmax": (lambda r: r.argmax(2), "row must be in 0..1, got 2"),
    "negative": (lambda r: r.argmax(-1), "row must be in 0..1, got -1"),
    "copy": (lambda r: r.copy(2), "row must be in 0..1, got 2"),
    "logprobs": (lambda r: r.logprobs(5, 0, 0), "row must be in 0..1, got 5"),
    "token": (lambda r: r.logprobs(0, 3, 0), "token must be in 0..2 and top in 0..3, got 3 and 0"),
    "negative token": (lambda r: r.logprobs(0, -1, 0), "got -1 and 0"),
    "top": (lambda r: r.logprobs(0, 0, 4), "got 0 and 4"),
    "columns": (lambda r: r.set(np.zeros((1, 4), np.float32)), "must have 3 columns, got 4"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused_and_change_nothing(name: str) -> None:
    rows = rows_of([1.0, 2.0, 0.0], [0.0, 0.0, 1.0])
    call, message = BAD_CALLS[name]
    with pytest.raises(InputError, match=message):
        call(rows)
    assert [rows.argmax(0), rows.argmax(1)] == [1, 2]


@pytest.mark.parametrize("size", [0, -1])
def test_rows_need_a_vocabulary(size: int) -> None:
    with pytest.raises(InputError, match=f"vocab_size must be >= 1, got {size}"):
        Rows(size)


@pytest.mark.parametrize("logits", [np.zeros((2, 3)), np.zeros(3, np.float32), None, [[0.0] * 3]])
def test_logits_of_another_kind_are_refused(logits: Any) -> None:
    rows = Rows(3)
    with pytest.raises((TypeError, ValueError)):
        rows.set(logits)
    assert len(rows) == 0
