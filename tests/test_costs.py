"""Tables of costs: what they must hold, and their files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ngramspec.costs import CostTable, load_costs, save_costs
from ngramspec.errors import InputError

TABLE = CostTable(((1, 0.01), (8, 0.02)), "mine")


@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf])
def test_a_cost_must_be_a_positive_number(cost: float) -> None:
    with pytest.raises(InputError, match="the cost of 8 tokens must be > 0 and finite, got"):
        CostTable(((1, 0.01), (8, cost)))


@pytest.mark.parametrize("sizes", [(), (0,), (1, 1), (2, 1)])
def test_sizes_must_rise_from_one_on(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="rising batch sizes from 1 on"):
        CostTable(tuple((size, 1.0) for size in sizes))


def test_a_table_is_saved_as_all_files_are(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    (tmp_path / ".costs.json.0123abcd").touch()  # of a writer that was killed
    save_costs(TABLE, path)
    assert load_costs(path) == TABLE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    save_costs(TABLE, path)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_beyond_the_last_size_a_flat_last_step_does_not_make_tokens_cheap() -> None:
    flat_at_the_end = CostTable(((1, 10.0), (8, 80.0), (12, 81.0)))
    assert flat_at_the_end.cost(23) == pytest.approx(81.0 + 71.0)
    steep_at_the_end = CostTable(((1, 10.0), (8, 11.0), (12, 31.0)))
    assert steep_at_the_end.cost(14) == pytest.approx(41.0)
