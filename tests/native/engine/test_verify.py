"""verify against a loop in Python, the base sampler, and every documented error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.machines import SETTINGS as EXAMPLES
from ngramspec._native.engine.decode import GreedySampler, Rows, Sampler
from ngramspec._native.engine.verifier import verify
from ngramspec.errors import InputError
from ngramspec.verify.tree import longest_path

VOCAB = 5


def rows_for(likeliest: list[int]) -> Rows:
    """Return rows whose likeliest tokens are these."""
    rows = Rows(VOCAB)
    rows.set(np.eye(VOCAB, dtype=np.float32)[likeliest].reshape(len(likeliest), VOCAB))
    return rows


def reference(likeliest: list[int], draft: list[int]) -> list[int]:
    """Return the tokens that plain decoding emits while the draft holds."""
    emitted = []
    for index, token in enumerate(likeliest[: len(draft) + 1]):
        emitted.append(token)
        if index < len(draft) and token != draft[index]:
            break
    return emitted


@EXAMPLES
@given(st.data())
def test_tokens_are_the_targets_own_while_the_draft_guesses_them(data: st.DataObject) -> None:
    likeliest = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
    first = data.draw(st.integers(0, len(likeliest) - 1))
    room = len(likeliest) - first - 1
    guess = st.integers(0, VOCAB - 1)
    own = [st.sampled_from([token, (token + 1) % VOCAB, token]) for token in likeliest[first:]]
    draft = [data.draw(own[i] | guess) for i in range(data.draw(st.integers(0, room)))]
    out = np.full(len(draft) + 1, -7, dtype=np.int32)
    count = verify(rows_for(likeliest), first, draft, GreedySampler(), out)
    expected = reference(likeliest[first:], draft)
    assert out[:count].tolist() == expected
    assert out[count:].tolist() == [-7] * (out.size - count)
    assert 1 <= count <= len(draft) + 1
    assert draft[: count - 1] == expected[:-1]


@EXAMPLES
@given(st.data())
def test_a_tree_is_right_along_any_of_its_branches(data: st.DataObject) -> None:
    draft = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=12))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(draft))]
    likeliest = [data.draw(st.integers(0, VOCAB - 1)) for _ in range(len(draft) + 1)]
    path = longest_path(parents, draft, likeliest).tolist()
    expected = [draft[i] for i in path] + [likeliest[path[-1] + 1 if path else 0]]
    out = np.full(len(draft) + 1, -7, dtype=np.int32)
    above = np.array(parents, np.int32)
    count = verify(rows_for(likeliest), 0, draft, GreedySampler(), out, above)
    assert out[:count].tolist() == expected
    assert out[count:].tolist() == [-7] * (out.size - count)


def test_a_right_draft_gives_one_token_more_than_it_has() -> None:
    out = np.empty(8, dtype=np.int32)
    draft = np.array([1, 2, 3], dtype=np.int32)
    assert verify(rows_for([1, 2, 3, 4]), 0, draft, GreedySampler(), out) == 4
    assert out[:4].tolist() == [1, 2, 3, 4]


def test_without_a_draft_one_token_is_chosen() -> None:
    out = np.empty(1, dtype=np.int32)
    assert verify(rows_for([3]), 0, [], GreedySampler(), out) == 1
    assert out[0] == 3


def test_a_sampler_without_a_token_ends_it() -> None:
    out = np.full(3, -7, dtype=np.int32)
    assert verify(rows_for([1, 2, 3]), 0, [1, 2], Sampler(), out) == -1
    assert out.tolist() == [-7, -7, -7]


def test_the_base_sampler_chooses_nothing_and_takes_everything() -> None:
    sampler = Sampler()
    sampler.accept(3)
    sampler.accept_prompt(np.array([1, 2], dtype=np.int32))
    assert sampler.choose(rows_for([1]), 0) == -1


def test_the_greedy_sampler_is_stateless() -> None:
    sampler, rows = GreedySampler(), rows_for([2, 4])
    sampler.accept(4)
    sampler.accept_prompt([1, 2])
    assert [sampler.choose(rows, 1), sampler.choose(rows, 0), sampler.choose(rows, 1)] == [4, 2, 4]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_that_is_not_there_is_refused(index: int) -> None:
    with pytest.raises(InputError, match=rf"row must be in 0\.\.1, got {index}"):
        GreedySampler().choose(rows_for([1, 2]), index)


OUT = np.empty(8, dtype=np.int32)
Call = Callable[[Rows, Any], Any]
BAD_CALLS: dict[str, tuple[Call, str]] = {
    "row": (lambda r, out: verify(r, 2, [], GreedySampler(), out), r"row must be in 0\.\.1"),
    "negative row": (lambda r, out: verify(r, -1, [], GreedySampler(), out), "got -1"),
    "draft": (lambda r, out: verify(r, 0, [1, 2], GreedySampler(), out), "a draft of 2 tokens"),
    "behind": (lambda r, out: verify(r, 1, [1], GreedySampler(), out), r"reads rows 1\.\.2 of 2"),
    "out": (lambda r, out: verify(r, 0, [1], GreedySampler(), out[:1]), "2 places in out"),
    "token": (lambda r, out: verify(r, 0, [-1], GreedySampler(), out), "got -1"),
    "parents": (
        lambda r, out: verify(r, 0, [1], GreedySampler(), out, np.array([0], np.int32)),
        r"parents\[0\] must be in -1\.\.-1",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused_and_write_nothing(name: str) -> None:
    call, message = BAD_CALLS[name]
    out = np.full(8, -7, dtype=np.int32)
    with pytest.raises(InputError, match=message):
        call(rows_for([1, 2]), out)
    assert out.tolist() == [-7] * 8


@pytest.mark.parametrize("out", [None, np.empty(4, np.int64), np.empty((2, 2), np.int32), [0, 0]])
def test_out_of_another_kind_is_refused(out: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        verify(rows_for([1, 2]), 0, [1], GreedySampler(), out)
    with pytest.raises(TypeError):
        verify(rows_for([1, 2]), 0, [1], None, OUT)  # type: ignore[arg-type]
