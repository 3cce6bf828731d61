"""Nodes and masks of a pass, beside what they are by definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.later import Later
from ngramspec.hosts.transformers.nodes import Nodes, misplaced
from ngramspec.hosts.transformers.passes import seen_keys

torch = Later("torch", "makes masks of torch, which is not installed")


@st.composite
def passes(draw: st.DrawFn) -> tuple[Nodes, list[list[int]]]:
    """The nodes of a pass, and for each row the parents that were given, without padding."""
    rows, width = draw(st.integers(1, 3)), draw(st.integers(0, 7))
    lengths = np.array([draw(st.integers(0, width)) for _ in range(rows)], np.int32)
    parents = np.full((rows, width), 77, np.int32)
    for row, n in enumerate(lengths):
        chain = draw(st.booleans())
        parents[row, :n] = [i - 1 if chain else draw(st.integers(-1, i - 1)) for i in range(n)]
    tokens = np.arange(rows * width, dtype=np.int32).reshape(rows, width) + 100
    by_row = [parents[row, :n].tolist() for row, n in enumerate(lengths)]
    return Nodes(np.arange(rows), tokens, parents, lengths), by_row


def paths_of(parents: list[int]) -> list[list[int]]:
    """For each node the nodes from the newest token to it."""
    paths = [[0]]
    for i, parent in enumerate(parents):
        paths.append([*paths[parent + 1], i + 1])
    return paths


@given(case=passes())
def test_nodes_are_those_of_the_paths(case: tuple[Nodes, list[list[int]]]) -> None:
    nodes, by_row = case
    width = nodes.parents.shape[1]
    assert nodes.branched == any(row != list(range(-1, len(row) - 1)) for row in by_row)
    seen = nodes.seen()
    for row, parents in enumerate(by_row):
        assert nodes.parents[row].tolist() == parents + [-1] * (width - len(parents))
        assert nodes.ids[row, 0] == row
        assert (nodes.ids[row, 1 : 1 + len(parents)] >= 100).all()
        assert not nodes.ids[row, 1 + len(parents) :].any()
        assert not nodes.depths[row, 1 + len(parents) :].any()
        for node, path in enumerate(paths_of(parents)):
            assert nodes.depths[row, node] == len(path) - 1
            assert np.flatnonzero(seen[row, node]).tolist() == sorted(path)
            assert [0, *nodes.path(row, node)] == path
            leaf = nodes.path(row, nodes.leaf(row, node))
            assert leaf[: len(path) - 1] == path[1:]
            assert (leaf[-1] if leaf else 0) - 1 not in parents
        assert seen[row].any(axis=1).all()  # padding sees something, or it would be NaN


@given(case=passes(), data=st.data())
def test_a_query_sees_the_keys_of_its_text_and_path(
    case: tuple[Nodes, list[list[int]]], data: st.DataObject
) -> None:
    nodes, by_row = case
    rows, queries = nodes.ids.shape
    starts = [data.draw(st.integers(3, 6)) for _ in range(rows)]
    held = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    window = data.draw(st.none() | st.integers(1, 9))
    first = data.draw(st.integers(0, 2))
    count = max(starts) + queries - first + data.draw(st.integers(0, 2))
    padding = [data.draw(st.integers(0, 3)) for _ in range(rows)]
    prompt = torch.tensor([[place >= padding[row] for place in range(3)] for row in held])
    seen = seen_keys(
        nodes,
        np.array(held),
        torch.tensor([[starts[row]] for row in held]),
        (first, count),
        window,
        data.draw(st.sampled_from([prompt, None])) if not any(padding) else prompt,
    )
    assert seen.shape == (len(held), queries, count)
    for i, row in enumerate(held):
        text = list(range(padding[row], starts[row]))
        for node, path in enumerate(paths_of(by_row[row])):
            visible = [*text, *(starts[row] + other for other in path)]
            visible = [place for place in visible[-(window or 99) :] if place >= first]
            # Distances count places, and padding is in none of them.
            assert (np.flatnonzero(seen[i, node]) + first).tolist() == sorted(visible)


def test_only_what_a_chain_would_not_have_there_is_moved() -> None:
    paths: Any = np.array([[0, 1, 2], [0, 2, -1], [1, 2, 3], [2, -1, -1], [0, 2, 3]], np.int32)
    counts = np.array([4, 3, 4, 1, 2])  # of the last two rows less is kept than was accepted
    rows, nodes, places = misplaced(counts, paths)
    assert list(zip(rows.tolist(), nodes.tolist(), places.tolist(), strict=True)) == [
        (1, 3, 2),
        (2, 2, 1),
        (2, 3, 2),
        (2, 4, 3),
    ]
