"""The statistics of the serving benchmark, on figures whose ratios are known."""

from __future__ import annotations

import numpy as np
import pytest

from serving_machine import share
from serving_statistics import FEWEST, ratio, verdict

QUIET = [True] * 40


def test_the_interval_holds_the_ratio_and_noise_that_hits_both_does_not_widen_it() -> None:
    noise = np.random.default_rng(1).uniform(0.2, 1.0, 40)
    interval = ratio(list(90 * noise), list(100 * noise), QUIET)
    assert interval.low == pytest.approx(0.9)
    assert interval.high == pytest.approx(0.9)
    assert interval.certain


def test_noise_that_hits_one_widens_the_interval() -> None:
    noise = np.random.default_rng(1).uniform(0.5, 1.5, 40)
    interval = ratio(list(100 * noise), [100.0] * 40, QUIET)
    assert interval.low < interval.median < interval.high
    assert interval.low < 1 < interval.high


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    chance, held = np.random.default_rng(3), 0
    for seed in range(60):
        interval = ratio(list(chance.lognormal(0.0, 0.2, 30)), [1.0] * 30, [True] * 30, seed)
        held += interval.low <= 1.0 <= interval.high
    assert held >= 51


def test_disturbed_pairs_are_left_out() -> None:
    interval = ratio([1.0] * 8 + [9.0] * 20, [1.0] * 28, [True] * 8 + [False] * 20)
    assert (interval.median, interval.used, interval.pairs) == (1.0, 8, 28)


def test_too_few_quiet_pairs_are_marked_and_the_verdict_says_that_it_cannot_tell() -> None:
    few = ratio([1.0] * 9, [2.0] * 9, [True] * (FEWEST - 1) + [False] * (10 - FEWEST))
    enough = ratio([1.0] * 9, [2.0] * 9, [True] * 9)
    assert str(few).endswith("?")
    assert verdict([few, enough]).startswith("Cannot tell")
    assert "Cannot tell" not in verdict([enough])


def test_no_quiet_pair_gives_no_figure() -> None:
    assert str(ratio([1.0], [2.0], [False])) == "?"


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 rates of 1 blocks"):
        ratio([1.0, 2.0], [1.0], [True])


@pytest.mark.parametrize(
    ("threads", "servers", "client"),
    [(2, {0, 1}, {1}), (1, {0}, {1}), (2, {0, 1, 2}, {3})],
)
def test_the_client_has_the_last_core(threads: int, servers: set[int], client: set[int]) -> None:
    cores = share(threads, frozenset(servers | client))
    assert (set(cores.servers), set(cores.client)) == (servers, client)
