"""Batch against a list of tuples, and every documented error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ngramspec.verify.tree
from helpers.backends import int32
from helpers.machines import SETTINGS as EXAMPLES
from ngramspec._native.engine.decode import Batch
from ngramspec.errors import CapacityError, InputError

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)
ADDS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 1000), TOKENS, st.none() | TOKENS, st.booleans()),
    max_size=8,
)


def contents(batch: Batch) -> list[tuple[int, int, int, bool]]:
    """Return token, position, sequence and output flag of every entry."""
    return list(zip(*(column.tolist() for column in batch.arrays()), strict=True))


@EXAMPLES
@given(ADDS, st.integers(1, 40))
def test_a_batch_is_what_was_added_in_order(adds: list[Any], capacity: int) -> None:
    batch, expected = Batch(capacity), []
    for sequence, position, tokens, draft, output in adds:
        draft = draft if output else None
        entries = [*tokens, *(draft or [])]
        first = sum(entry[3] for entry in expected)
        if len(expected) + len(entries) > capacity:
            with pytest.raises(CapacityError):
                batch.add(sequence, position, tokens, draft, output)
            continue
        row = batch.add(sequence, position, np.array(tokens, np.int32), draft, output)
        assert row == (first if output else -1)
        outputs = [output and i >= len(tokens) - 1 for i in range(len(entries))]
        expected += [(token, position + i, sequence, outputs[i]) for i, token in enumerate(entries)]
    assert contents(batch) == expected
    assert len(batch) == len(expected)
    assert batch.num_outputs == sum(entry[3] for entry in expected)
    assert batch.capacity == capacity


def leaves_below(parents: list[int]) -> list[set[int]]:
    """Return the leaves below each token, itself if it is one."""
    leaves: list[set[int]] = [set() for _ in parents]
    for i in reversed(range(len(parents))):
        leaves[i] |= set() if leaves[i] else {i}
        if parents[i] >= 0:
            leaves[parents[i]] |= leaves[i]
    return leaves


@EXAMPLES
@given(st.data())
def test_tokens_of_a_tree_stand_at_their_depth_and_share_branches_with_their_leaves(
    data: st.DataObject,
) -> None:
    draft = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=20))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(draft))]
    batch, above = Batch(40), np.array(parents, np.int32)
    assert batch.add(3, 10, [5, 6], draft, True, above) == 0
    tokens, positions, sequences, outputs = batch.arrays()
    assert tokens.tolist() == [5, 6, *draft]
    assert positions.tolist() == [10, 11, *(12 + ngramspec.verify.tree.positions(parents))]
    assert set(sequences.tolist()) == {3}
    assert outputs.tolist() == [False] + [True] * (len(draft) + 1)
    branches = batch.branches_of().tolist()
    below = leaves_below(parents)
    leaves = [i for i, own in enumerate(below) if own == {i}]
    of_leaf = {leaf: branches[2 + leaf] for leaf in leaves}
    assert sorted(of_leaf.values()) == [1 << number for number in range(len(leaves))]
    assert branches[2:] == [sum(of_leaf[leaf] for leaf in own) for own in below]
    assert branches[:2] == [(1 << len(leaves)) - 1] * 2
    first = parents.index(-1)  # branch 0: the first token, its first child and so on
    while first in parents:
        first = parents.index(first)
    assert of_leaf[first] == 1


def test_a_tree_has_at_most_31_leaves() -> None:
    batch = Batch(128)
    batch.add(0, 0, [1], [2] * 31, True, np.full(31, -1, np.int32))
    with pytest.raises(InputError, match="a tree may have at most 31 leaves"):
        batch.add(0, 1, [1], [2] * 32, True, np.full(32, -1, np.int32))
    assert len(batch) == 32
    with pytest.raises(InputError, match="expected a parent for each of 2 tokens, got 1"):
        batch.add(0, 1, [1], [2, 3], True, np.full(1, -1, np.int32))


def test_clear_makes_room_again() -> None:
    batch = Batch(3)
    batch.add(0, 0, [1, 2, 3])
    batch.clear()
    assert len(batch) == batch.num_outputs == 0
    assert contents(batch) == []
    assert batch.add(1, 5, [4], draft=[5, 6]) == 0
    assert contents(batch) == [(4, 5, 1, True), (5, 6, 1, True), (6, 7, 1, True)]


def test_the_rows_of_several_sequences_follow_one_another() -> None:
    batch = Batch(16)
    assert batch.add(0, 9, [1, 2], output=False) == -1
    assert batch.add(1, 0, [3], draft=[4, 5]) == 0
    assert batch.add(2, 0, [6]) == 3
    assert batch.num_outputs == 4


def test_the_parts_of_a_batch_are_those_of_its_sequences() -> None:
    batch = Batch(16)
    assert batch.parts() == []
    assert batch.tokens_of().tolist() == []
    batch.add(3, 7, int32([1, 2]), None, False)
    batch.add(0, 4, int32([3, 4, 5]), int32([6, 7]))
    batch.add(2, 0, int32([8]), int32([9, 1, 2]), parents=int32([-1, 0, 0]))
    batch.add(1, 9, int32([3]))
    assert batch.tokens_of().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert batch.parts() == [
        (3, 7, 0, 2, 2, False),
        (0, 4, 2, 7, 2, False),
        (2, 0, 7, 11, 0, True),
        (1, 9, 11, 12, 0, False),
    ]


def test_the_tokens_are_copied() -> None:
    batch, tokens = Batch(4), np.array([1, 2], dtype=np.int32)
    batch.add(0, 0, tokens)
    tokens[:] = 9
    assert batch.arrays()[0].tolist() == [1, 2]


BAD_ADDS: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "sequence": (lambda b: b.add(-1, 0, [1]), "sequence -1 and position 0 must be >= 0"),
    "position": (lambda b: b.add(0, -2, [1]), "position -2 must be >= 0"),
    "draft without output": (lambda b: b.add(0, 0, [1], [2], False), "a draft needs output"),
    "no token": (lambda b: b.add(0, 0, []), "at least one token"),
    "negative token": (lambda b: b.add(0, 0, [-1]), "got -1"),
    "negative draft": (lambda b: b.add(0, 0, [1], [-3]), "got -3"),
    "wide token": (lambda b: b.add(0, 0, np.zeros(2, np.int64)), "int64"),
    "strided draft": (lambda b: b.add(0, 0, [1], np.zeros(4, np.int32)[::2]), "strided"),
    "no sequence of ids": (lambda b: b.add(0, 0, 7), "int"),
}


@pytest.mark.parametrize("name", BAD_ADDS)
def test_bad_entries_are_refused_and_change_nothing(name: str) -> None:
    batch = Batch(8)
    batch.add(0, 0, [5])
    call, message = BAD_ADDS[name]
    with pytest.raises(InputError, match=message):
        call(batch)
    assert contents(batch) == [(5, 0, 0, True)]
    assert batch.num_outputs == 1


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    batch = Batch(4)
    batch.add(0, 0, [5, 6])
    with pytest.raises(CapacityError, match=r"1 \+ 2 tokens do not fit: 2 of 4 are taken"):
        batch.add(1, 0, [1], draft=[2, 3])
    assert contents(batch) == [(5, 0, 0, False), (6, 1, 0, True)]
    batch.add(1, 0, [1], draft=[2])
    assert len(batch) == 4


@pytest.mark.parametrize("capacity", [0, -5])
def test_a_batch_needs_room(capacity: int) -> None:
    with pytest.raises(InputError, match=f"capacity must be >= 1, got {capacity}"):
        Batch(capacity)


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MemoryError, match="no memory for"):
        Batch(1 << 60)
