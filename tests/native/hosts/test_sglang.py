"""tree_rows beside the definition: breadth first, ancestors by ngramspec.verify.tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec._native.hosts.sglang import tree_rows
from ngramspec.errors import InputError
from ngramspec.verify.tree import ancestor_mask, positions


def rows(tokens: Any, parents: Any, root: int, width: int) -> tuple[Any, Any]:
    out, mask = np.full(width, 99, np.int64), np.full(width * width, 99, np.int64)
    tree_rows(np.array(tokens, np.int32), np.array(parents, np.int32), root, out, mask)
    return out, mask.reshape(width, width)


@given(st.data())
def test_rows_are_breadth_first_with_the_mask_of_their_ancestors(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 12))
    width = data.draw(st.integers(n + 1, n + 4))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
    tokens = list(range(100, 100 + n))
    out, mask = rows(tokens, parents, 7, width)
    order = np.argsort(positions(parents), kind="stable")
    assert out.tolist() == [7, *(tokens[i] for i in order), *[0] * (width - 1 - n)]
    row_of = {int(i): 1 + row for row, i in enumerate(order)} | {-1: 0}
    above = [-1] + [row_of[parents[i]] for i in order] + [0] * (width - 1 - n)
    assert (mask == ancestor_mask(above)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, 2]}, "expected a parent for each of 2 tokens, got 3"),
        ({"width": 3}, "fewer tokens than the 3 rows and at most 256"),
        ({"parents": [-1, 1, 0]}, r"parents\[1\] must be in -1..0, got 1"),
        ({"parents": [-2, 0, 0]}, r"parents\[0\] must be in -1..-1, got -2"),
        ({"tokens": [1, 2, -3]}, "got -3 at position 2"),
    ],
)
def test_what_is_no_tree_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"tokens": [1, 2, 3], "parents": [-1, 0, 0], "root": 7, "width": 4}
    assert rows(**arguments)[0].tolist() == [7, 1, 2, 3]
    with pytest.raises(InputError, match=message):
        rows(**{**arguments, **change})


def test_arrays_of_other_shapes_are_refused_and_nothing_is_written() -> None:
    ids, out, mask = np.array([1], np.int32), np.full(3, 9, np.int64), np.full(9, 9, np.int64)
    with pytest.raises(InputError, match="out_mask must have 9 entries, got 8"):
        tree_rows(ids, ids - 2, 7, out, mask[:8])
    with pytest.raises(InputError, match="parents must be an int32 array of shape"):
        tree_rows(ids, (ids - 2).astype(np.int64), 7, out, mask)
    with pytest.raises(ValueError, match="dtype mismatch"):
        tree_rows(ids, ids - 2, 7, out.astype(np.int32), mask)
    assert (out == 9).all()
    assert (mask == 9).all()
