"""Verification for any engine, against loops over requests and tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.errors import InputError
from ngramspec.verify import (
    position_uniforms,
    verify_greedy,
    verify_sampled,
    verify_tree,
    verify_tree_sampled,
)
from reference import verify as slow

METHODS = ("compare", "reject")


class Case(NamedTuple):
    probs: Any
    drafts: Any
    lengths: Any
    uniforms: Any


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Probabilities in quarters and numbers between their bounds: rounding decides nothing."""
    batch, width = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    probs = rng.multinomial(4, [0.2] * 5, size=(batch, 1 + width)) / 4
    drafts = rng.integers(0, 5, (batch, width))
    likely = rng.random((batch, width)) < 0.8  # or hardly any draft would be right
    drafts = np.where(likely, probs[:, :width].argmax(-1), drafts)
    lengths = rng.integers(0, width + 1, batch)
    for i, n in enumerate(lengths):  # what is padding must not matter
        drafts[i, n:] = rng.choice([-7, 99])
        probs[i, n + 1 :] = rng.choice([np.nan, -1, np.inf])
    uniforms = (2 * rng.integers(0, 24, (batch, 1 + width)) + 1) / 48
    return Case(probs, drafts, lengths, uniforms)


def texts(verification: Any) -> list[list[int]]:
    """What is emitted, found to be padded and to be of one token more than was accepted."""
    rows = [[int(t) for t in row if t >= 0] for row in verification.tokens]
    assert verification.tokens.tolist() == slow.padded(rows, verification.tokens.shape[1])
    assert verification.num_accepted.tolist() == [len(row) - 1 for row in rows]
    assert str(verification.tokens.dtype).endswith("int32")
    assert str(verification.num_accepted.dtype).endswith("int32")
    return rows


def sampled(case: Case, method: Any) -> Any:
    return verify_sampled(
        case.probs, case.drafts, case.lengths, method=method, uniforms=case.uniforms
    )


@given(case=cases())
def test_greedy_is_the_loop_over_logits_or_ids(case: Case) -> None:
    expected = slow.greedy(case.probs, case.drafts, case.lengths)
    assert texts(verify_greedy(case.probs, case.drafts, case.lengths)) == expected
    ids = case.probs.argmax(-1)
    for i, n in enumerate(case.lengths):
        ids[i, n + 1 :] = -3
    assert texts(verify_greedy(ids, case.drafts, case.lengths)) == expected


@pytest.mark.parametrize("method", METHODS)
@given(case=cases())
def test_sampled_is_the_loop_over_tokens(method: str, case: Case) -> None:
    assert texts(sampled(case, method)) == getattr(slow, method)(*case)


@given(case=cases())
def test_torch_tensors_give_what_arrays_give(case: Case) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    here = Case(*map(torch.tensor, case))
    for mixed in (here, here._replace(drafts=case.drafts, lengths=case.lengths.tolist())):
        verification = verify_greedy(mixed.probs, mixed.drafts, mixed.lengths)
        assert isinstance(verification.tokens, torch.Tensor)
        assert texts(verification) == texts(verify_greedy(case.probs, case.drafts, case.lengths))
        for method in METHODS:
            assert texts(sampled(mixed, method)) == texts(sampled(case, method))
    small = here._replace(probs=here.probs.bfloat16(), uniforms=here.uniforms.float())
    assert texts(sampled(small, "reject")) == slow.reject(*case)
    verification = verify_greedy(
        here.probs[..., 0].nan_to_num(0, 0).long().abs(), here.drafts, here.lengths
    )
    assert verification.tokens.shape == here.uniforms.shape


def test_torch_generators_and_gradients() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    probs = torch.full((2, 3, 4), 0.25, requires_grad=True)
    drafts, lengths = torch.zeros((2, 2), dtype=torch.int32), [2, 1]
    tokens = [
        verify_sampled(
            probs, drafts, lengths, method="reject", generator=torch.Generator().manual_seed(5)
        ).tokens
        for _ in range(2)
    ]
    assert tokens[0].tolist() == tokens[1].tolist()
    assert not tokens[0].requires_grad
    with pytest.raises(InputError, match=r"must be a torch\.Generator like probs, got Generator"):
        verify_sampled(probs, drafts, lengths, method="reject", generator=np.random.default_rng(1))
    with pytest.raises(InputError, match=r"drafts must be whole numbers .* got torch\.float32"):
        verify_greedy(probs, drafts.float(), lengths)
    tree = verify_tree(probs, [[0, 0], [0, 9]], [[-1, 0], [-1, 9]], torch.tensor(lengths))
    assert [part.tolist() for part in tree] == [
        [2, 1],
        [[0, 0, 0], [0, 0, -1]],
        [[0, 1], [0, -1]],
    ]


class TreeCase(NamedTuple):
    probs: Any
    tokens: Any
    parents: Any
    lengths: Any
    uniforms: Any


@st.composite
def tree_cases(draw: st.DrawFn) -> TreeCase:
    """As cases(); equal siblings may occur."""
    batch, width = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    probs = rng.multinomial(4, [0.25] * 4, size=(batch, 1 + width)) / 4
    parents = np.array([[rng.integers(-1, i) for i in range(width)] for _ in range(batch)], int)
    parents = parents.reshape(batch, width)
    tokens = rng.integers(0, 4, (batch, width))
    lengths = rng.integers(0, width + 1, batch)
    for i, n in enumerate(lengths):  # what is padding must not matter
        parents[i, n:], tokens[i, n:] = 77, -5
        probs[i, n + 1 :] = rng.choice([np.nan, -1, np.inf])
    uniforms = (2 * rng.integers(0, 24, (batch, 1 + width)) + 1) / 48
    return TreeCase(probs, tokens, parents, lengths, uniforms)


def tree_sampled(case: TreeCase, method: Any) -> Any:
    *tree, uniforms = case
    return verify_tree_sampled(*tree, method=method, uniforms=uniforms)


def tree_texts(verification: Any, case: TreeCase) -> list[list[int]]:
    """What is emitted, found to be what the paths say."""
    rows = texts(verification)
    assert str(verification.paths.dtype).endswith("int32")
    for i, (row, path) in enumerate(zip(rows, verification.paths.tolist(), strict=True)):
        nodes = [node for node in path if node >= 0]
        assert path == slow.padded([nodes], len(path))[0]
        assert row[:-1] == case.tokens[i][nodes].tolist()
        assert [-1, *nodes[:-1]][: len(nodes)] == case.parents[i][nodes].tolist()
        # Of equal siblings the first.
        for node in nodes:
            twins = (case.parents[i] == case.parents[i][node]) & (
                case.tokens[i] == case.tokens[i][node]
            )
            assert twins.argmax() == node
    return rows


@given(case=tree_cases())
def test_greedy_trees_are_the_walk_from_their_roots(case: TreeCase) -> None:
    *tree, _ = case
    expected = slow.tree_greedy(*tree)
    assert tree_texts(verify_tree(*tree), case) == expected
    assert tree_texts(verify_tree(case.probs.argmax(-1), *tree[1:]), case) == expected


@pytest.mark.parametrize("method", METHODS)
@given(case=tree_cases())
def test_sampled_trees_are_the_walk_from_their_roots(method: str, case: TreeCase) -> None:
    expected = getattr(slow, f"tree_{method}")(*case)
    assert tree_texts(tree_sampled(case, method), case) == expected


@pytest.mark.parametrize("method", METHODS)
@given(case=cases())
def test_a_tree_without_branches_is_verified_like_a_chain(method: Any, case: Case) -> None:
    width = case.drafts.shape[1]
    chain = np.tile(np.arange(-1, width - 1), (len(case.lengths), 1))
    verification = verify_tree_sampled(
        case.probs, case.drafts, chain, case.lengths, method=method, uniforms=case.uniforms
    )
    assert texts(verification) == texts(sampled(case, method))


@given(case=tree_cases())
def test_trees_as_torch_tensors_give_what_arrays_give(case: TreeCase) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    here = TreeCase(*map(torch.tensor, case))
    for mixed in (here, here._replace(tokens=case.tokens, lengths=case.lengths.tolist())):
        verification = verify_tree(*mixed[:4])
        assert isinstance(verification.paths, torch.Tensor)
        assert texts(verification) == texts(verify_tree(*case[:4]))
        for method in METHODS:
            assert texts(tree_sampled(mixed, method)) == texts(tree_sampled(case, method))


def test_arguments_are_left_alone_and_may_be_read_only() -> None:
    case = Case(np.full((2, 3, 4), 0.25), np.ones((2, 2), np.int32), np.array([2, 0]), None)
    case = case._replace(uniforms=np.full((2, 3), 0.3))
    parents = np.array([[-1, -1], [-1, 0]])
    parents.flags.writeable = False
    before = [array.copy() for array in case]
    for array in case:
        array.flags.writeable = False
    for method in METHODS:
        sampled(case, method)
        tree_sampled(TreeCase(*case[:2], parents, *case[2:]), method)
    ids = np.ones((2, 3), np.int32)
    verification = verify_greedy(ids, case.drafts, case.lengths)
    verification.tokens[:] = 9
    assert (ids == 1).all()
    assert all((a == b).all() for a, b in zip(before, case, strict=True))


P = np.full((2, 3, 4), 0.25)
D = np.zeros((2, 2), np.int32)
N = [2, 1]
U = np.full((2, 3), 0.5)


def changed(array: Any, place: Any, value: Any) -> Any:
    array = np.array(array)
    array[place] = value
    return array


def call(**changes: Any) -> Any:
    uniforms = changes.pop("uniforms", U)
    arguments = {"probs": P, "drafts": D, "lengths": N, "method": "reject", **changes}
    return verify_sampled(**arguments, uniforms=uniforms)


def tree_call(**changes: Any) -> Any:
    arguments = {"probs": P, "tokens": D, "parents": D - 1, "lengths": N, "method": "reject"}
    return verify_tree_sampled(**{**arguments, "uniforms": U, **changes})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: verify_greedy(P, D[0], N),
            r"drafts must be whole numbers of shape \(batch, max_d",
        ),
        (lambda: verify_greedy(P, D + 0.5, N), "drafts must be whole numbers .* got float64"),
        (lambda: verify_greedy(P, D > 0, N), "drafts must be whole numbers .* got bool"),
        (lambda: verify_greedy(P, D, 2), r"lengths must be whole numbers of shape \(batch,\)"),
        (lambda: verify_greedy(P, D, [1.0, 1.0]), "lengths must be whole numbers"),
        (
            lambda: verify_greedy(P, D, [2]),
            r"need \(2, 3\) rows .* and \(2,\) lengths, got .* \(1,\)",
        ),
        (lambda: verify_greedy(P[:, :2], D, N), r"drafts of shape \(2, 2\) need .* got \(2, 2\)"),
        (lambda: verify_greedy(P[:1], D, N), r"got \(1, 3\) and"),
        (lambda: verify_greedy(P, D, [0, 3]), r"lengths must be in 0..2, got 3 in place \[1\]"),
        (lambda: verify_greedy(P, D, [-1, 3]), r"lengths must be in 0..2, got -1 in place \[0\]"),
        (
            lambda: verify_greedy(P, changed(D, (0, 1), 4), N),
            r"drafts must be token ids in 0..3, got 4 in place \[0, 1\]",
        ),
        (lambda: verify_greedy(P, D - 1, N), r"token ids in 0..3, got -1 in place \[0, 0\]"),
        (lambda: verify_greedy(P[0], D, N), "logits, unless floats of 3 axes, must be whole"),
        (lambda: verify_greedy("text", D, N), "logits, unless floats of 3 axes, must be whole"),
        (lambda: verify_greedy(P[..., :0], D, N), "logits must be of at least one token"),
        (
            lambda: verify_greedy(U.astype(int) - 1, D, N),
            "ids of the target must be in 0..2147483647",
        ),
        (
            lambda: verify_greedy(U.astype(int), D.astype(int) + 2**40, N),
            "drafts must be token ids in 0..2147483647",
        ),
        (lambda: verify_greedy(P, [[1, 2], [3]], N), "drafts must be an array: "),
        (lambda: verify_greedy([[1, 2, 3], [3]], D, N), "logits must be an array: "),
        (lambda: verify_tree(P, D, [[-1, 0], [-1]], N), "parents must be an array: "),
        (lambda: call(probs=[[[0.5, 0.5], [1.0]]]), "probs must be an array: "),
        (lambda: call(probs=P[0]), "probs must be floats of shape"),
        (lambda: call(probs=P.astype(int)), "probs must be floats of shape .* got int64"),
        (lambda: call(probs=P[..., :0], lengths=[0, 0]), "probs must be of at least one token"),
        (lambda: call(probs=P * 0.9), r"must sum to 1 within 0.01, got 0.9 in place \[0, 0\]"),
        (lambda: call(probs=changed(P, (1, 1, 0), np.nan)), r"got nan in place \[1, 1\]"),
        (
            lambda: call(probs=changed(P, (1, 0), [-0.5, 0.5, 0.5, 0.5])),
            r"probs must be >= 0, got -0.5 in place \[1, 0\]",
        ),
        (lambda: call(method="guess"), "method must be 'compare' or 'reject', got 'guess'"),
        (lambda: call(uniforms=None), "expected uniforms or a generator, got none"),
        (lambda: call(generator=np.random.default_rng(1)), "a generator, got both"),
        (lambda: call(uniforms=U[:, :2]), r"uniforms must be of shape \(2, 3\), got \(2, 2\)"),
        (lambda: call(uniforms=U.astype(int)), "uniforms must be floats"),
        (
            lambda: call(uniforms=changed(U, (1, 1), 1.0)),
            r"must be in \[0, 1\), got 1.0 in place \[1",
        ),
        (lambda: call(uniforms=changed(U, (0, 0), np.nan)), r"must be in \[0, 1\), got nan"),
        (
            lambda: call(uniforms=None, generator=5),
            r"generator must be a numpy.random.Generator like probs, got int",
        ),
        (lambda: verify_tree(P, D, D[:1], N), r"parents must be of shape \(2, 2\), got \(1, 2\)"),
        (lambda: verify_tree(P, D, D - 1.5, N), "parents must be whole numbers"),
        (
            lambda: verify_tree(P, D, [[-1, 0], [0, 0]], N),
            r"parents must be -1 or the index of an earlier token, got 0 in place \[1, 0\]",
        ),
        (lambda: verify_tree(P, D + 4, D - 1, N), "tokens must be token ids in 0..3, got 4"),
        (lambda: verify_tree(P, D, D - 2, N), r"or the index of an earlier token, got -2"),
        (lambda: tree_call(parents=D), r"an earlier token, got 0 in place \[0, 0\]"),
        (lambda: tree_call(tokens=D + 4), "tokens must be token ids in 0..3, got 4"),
        (lambda: tree_call(probs=P * 0.9), r"must sum to 1 within 0.01, got 0.9 in place \[0, 0"),
        (lambda: tree_call(method="guess"), "method must be 'compare' or 'reject', got 'guess'"),
        (lambda: tree_call(uniforms=None), "expected uniforms or a generator, got none"),
        (lambda: tree_call(uniforms=U + 0.5), r"uniforms must be in \[0, 1\), got 1.0"),
        (lambda: position_uniforms([1], [1, 2], 3), "as many positions as seeds"),
        (lambda: position_uniforms([1], [-1], 3), r"all >= 0, .* positions \[-1\] and width 3"),
        (lambda: position_uniforms([1], [1], -1), "and width -1"),
        (lambda: position_uniforms(1, [1], 1), r"seeds must be whole numbers of shape \(batch,\)"),
        (lambda: position_uniforms([1], [0.5], 1), "positions must be whole numbers"),
    ],
)
def test_what_is_not_as_documented_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_torch_tensors_beside_arrays_become_arrays() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    uniforms = torch.tensor(U, requires_grad=True)
    verification = call(drafts=torch.tensor(D), lengths=torch.tensor(N), uniforms=uniforms)
    assert isinstance(verification.tokens, np.ndarray)
    assert (verification.tokens == call().tokens).all()


def test_a_refused_call_uses_no_random_numbers() -> None:
    rng = np.random.default_rng(4)
    state = rng.bit_generator.state
    for wrong in ({"probs": P * 2}, {"drafts": D + 9}, {"lengths": [5, 5]}, {"method": "x"}):
        with pytest.raises(InputError):
            call(**wrong, uniforms=None, generator=rng)
    assert rng.bit_generator.state == state
