"""Helpers for verifying trees, against brute force over paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec import create_drafter
from ngramspec.errors import InputError
from ngramspec.verify.tree import ancestor_mask, longest_path, positions

#      0     1
#     / \     \
#    2   3     4
#        |
#        5
PARENTS = [-1, -1, 0, 0, 1, 3]


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    n = draw(st.integers(0, 12))
    return [draw(st.integers(-1, i - 1)) for i in range(n)]


def path_to(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*path_to(parents, parents[node]), node]


def test_a_tree_by_hand() -> None:
    assert positions(PARENTS).tolist() == [0, 0, 1, 1, 1, 2]
    rows = ["100000", "010000", "101000", "100100", "010010", "100101"]
    mask = ancestor_mask(PARENTS)
    assert ["".join(map(str, row.astype(int))) for row in mask] == rows
    assert (ancestor_mask(PARENTS, 2) == np.hstack([np.ones((6, 2), bool), mask])).all()
    # The target says 7, then 9, then 8, then 5: the path 0 3 5, and 5 is its own.
    tokens, chosen = [7, 6, 8, 9, 1, 8], [7, 9, 0, 0, 8, 0, 5]
    assert longest_path(PARENTS, tokens, chosen).tolist() == [0, 3, 5]
    assert longest_path(PARENTS, tokens, [3] * 7).tolist() == []


def test_kinds_of_what_is_returned() -> None:
    for n in (0, 6):
        parents = np.array(PARENTS[:n], dtype=np.int32)
        chosen = np.zeros(n + 1, np.int64)
        assert (positions(parents).dtype, positions(parents).shape) == (np.int32, (n,))
        assert (ancestor_mask(parents, 3).dtype, ancestor_mask(parents, 3).shape) == (
            np.bool_,
            (n, 3 + n),
        )
        assert longest_path(parents, np.zeros(n, np.int32), chosen).dtype == np.int32


@given(parents=trees(), context=st.integers(0, 3))
def test_masks_and_positions_are_those_of_the_paths(parents: list[int], context: int) -> None:
    mask = ancestor_mask(parents, context)
    for i, depth in enumerate(positions(parents)):
        path = path_to(parents, i)
        assert depth == len(path) - 1
        assert np.flatnonzero(mask[i, context:]).tolist() == sorted(path)
        assert mask[i, :context].all()


@given(parents=trees(), data=st.data())
def test_the_accepted_path_is_the_longest_that_the_target_says(
    parents: list[int], data: st.DataObject
) -> None:
    n = len(parents)
    places: dict[int, int] = {}  # siblings differ
    tokens = []
    for parent in parents:
        tokens.append(places.get(parent, 0))
        places[parent] = tokens[-1] + 1
    chosen = data.draw(st.lists(st.integers(0, 2), min_size=n + 1, max_size=n + 1))
    right = [
        path
        for path in (path_to(parents, i) for i in range(-1, n))
        if all(
            tokens[node] == chosen[before + 1]
            for before, node in zip([-1, *path], path, strict=False)
        )
    ]
    assert longest_path(parents, tokens, chosen).tolist() == max(right, key=len)


def test_a_step_of_an_engine() -> None:
    text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2]
    drafter = create_drafter("suffix")
    drafter.begin(0, text)
    tokens, parents, _ = drafter.propose_tree(0, 12)
    says = {2: 3, 3: 4, 4: 9, 9: 7}  # the target, by the last token
    chosen = np.array([says.get(int(last), 0) for last in [2, *tokens]])
    path = longest_path(parents, tokens, chosen)
    own = chosen[path[-1] + 1 if len(path) else 0]
    drafter.accept(0, [*tokens[path].tolist(), int(own)], len(path))
    assert drafter.history(0).tolist() == [*text, 3, 4, 9, 7]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: positions([0]), r"parents\[0\] must be in -1..-1, got 0"),
        (lambda: positions([-1, -2]), r"parents\[1\] must be in -1..0, got -2"),
        (lambda: ancestor_mask([-1, 1]), r"parents\[1\] must be in -1..0, got 1"),
        (lambda: ancestor_mask([-1], -1), "context must be >= 0, got -1"),
        (lambda: positions([[-1]]), r"parents must be whole numbers of shape \(n,\)"),
        (lambda: positions([-1.0]), "parents must be whole numbers"),
        (lambda: ancestor_mask([[-1], [-1, 0]]), "parents must be whole numbers of shape"),
        (lambda: longest_path([-1], [1, 2], [1, 2]), "got 1 parents, 2 tokens and 2 choices"),
        (lambda: longest_path([-1], [1], [1]), "got 1 parents, 1 tokens and 1 choices"),
        (lambda: longest_path([-1], [1.5], [1, 2]), "tokens must be whole numbers"),
        (lambda: longest_path([-1], [1], "ab"), "chosen must be whole numbers"),
    ],
)
def test_what_is_no_tree_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
