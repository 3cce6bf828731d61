"""Sampled verification keeps the target's distribution, and with "compare" its very text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ngramspec.verify import position_uniforms, verify_sampled, verify_tree_sampled
from ngramspec.verify.arrays import Arrays
from ngramspec.verify.sampled import sample

METHODS = ("compare", "reject")
# What follows depends on the last token; some tokens are impossible, one is certain.
MODEL = np.array(
    [
        [0.05, 0.50, 0.20, 0.15, 0.10],
        [0.10, 0.10, 0.60, 0.00, 0.20],
        [0.30, 0.05, 0.05, 0.30, 0.30],
        [0.00, 0.00, 0.00, 0.00, 1.00],
        [0.25, 0.25, 0.25, 0.15, 0.10],
    ]
)
SAMPLES = 60_000
DRAFTS = [[1, 2, 4], [1, 2, 0], [2, 3, 4], [1, 3, 0], [3, 4, 0], [4, 4, 4]]


def model_texts(verification: Any, rng: Any) -> Any:
    """Three tokens per request: what was emitted, then what the model says without drafts."""
    text = verification.tokens[:, :3].astype(int)
    for j in range(1, 3):
        missing = text[:, j] < 0
        own = (MODEL[text[:, j - 1]].cumsum(-1) > rng.random((len(text), 1))).argmax(-1)
        text[missing, j] = own[missing]
    return text


def excess(text: Any) -> float:
    """Chi-square of the texts beside the model's probabilities, over its one in 10,000."""
    expected = np.einsum("i,ij,jk->ijk", MODEL[0], MODEL, MODEL).ravel() * len(text)
    seen = np.bincount(text @ [25, 5, 1], minlength=125)
    assert not seen[expected == 0].any()
    common = expected >= 10
    expected = np.append(expected[common], expected[~common].sum())
    seen = np.append(seen[common], seen[~common].sum())
    freedom = len(expected) - 1
    part = 2 / (9 * freedom)  # Wilson and Hilferty
    return float(
        ((seen - expected) ** 2 / expected).sum()
        - freedom * (1 - part + 3.719 * math.sqrt(part)) ** 3
    )


def drafted(seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    drafts = np.array(DRAFTS)[rng.integers(0, len(DRAFTS), SAMPLES)]
    lengths = rng.integers(0, 4, SAMPLES)
    last = np.hstack([np.zeros((SAMPLES, 1), int), drafts])
    return MODEL[last].astype(np.float32), drafts, lengths


@pytest.mark.parametrize("method", METHODS)
def test_texts_have_the_distribution_of_the_model(method: Any) -> None:
    probs, drafts, lengths = drafted(1)
    rng = np.random.default_rng(2)
    verification = verify_sampled(probs, drafts, lengths, method=method, generator=rng)
    assert verification.num_accepted.mean() > 0.3
    assert excess(model_texts(verification, rng)) < 0


# Tokens and parents; the model says 1, 2 or 3 after 0, and only 4 after 3.
TREES = [
    ([1, 2, 3, 2, 4, 4], [-1, -1, -1, 0, 2, 1]),
    ([2, 1, 0, 4, 3, 0], [-1, -1, 0, 0, 0, 1]),
    ([4, 3, 2, 4, 4, 0], [-1, 0, -1, 2, 3, 2]),
]


def treed(seed: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(TREES), SAMPLES)
    tokens, parents = (np.array([tree[part] for tree in TREES])[which] for part in (0, 1))
    lengths = rng.integers(0, 7, SAMPLES)
    last = np.hstack([np.zeros((SAMPLES, 1), int), tokens])
    return MODEL[last].astype(np.float32), tokens, parents, lengths


@pytest.mark.parametrize("method", METHODS)
def test_texts_with_trees_have_the_distribution_of_the_model(method: Any) -> None:
    rng = np.random.default_rng(2)
    verification = verify_tree_sampled(*treed(1), method=method, generator=rng)
    side = (verification.paths[:, 0] > 0).mean()
    assert verification.num_accepted.mean() > 0.5
    assert side > 0.15  # a first token that is not the first one of the tree
    assert excess(model_texts(verification, rng)) < 0


def test_the_test_of_distribution_notices_a_sibling_that_is_judged_afresh() -> None:
    probs, tokens, parents, lengths = treed(1)
    rng = np.random.default_rng(2)
    verification = verify_tree_sampled(
        probs, tokens, parents, lengths, method="reject", generator=rng
    )
    # What a number of its own for the second first token would give.
    second = (parents == -1).cumsum(axis=1) == 2
    at = second.argmax(axis=1)
    requests = np.arange(SAMPLES)
    likely = probs[requests, 0, tokens[requests, at]]
    again = (verification.num_accepted == 0) & (at < lengths) & second.any(axis=1)
    again &= rng.random(SAMPLES) < likely
    verification.tokens[again, 0] = tokens[requests, at][again]
    verification.tokens[again, 1:] = -1
    assert excess(model_texts(verification, rng)) > 0


def test_the_test_of_distribution_notices_a_residual_that_keeps_the_failed_token() -> None:
    probs, drafts, lengths = drafted(1)
    rng = np.random.default_rng(2)
    verification = verify_sampled(probs, drafts, lengths, method="reject", generator=rng)
    failed = np.flatnonzero(verification.num_accepted < lengths)
    at = verification.num_accepted[failed]
    again = rng.random(len(failed)) < probs[failed, at, drafts[failed, at]]
    verification.tokens[failed[again], at[again]] = drafts[failed[again], at[again]]
    assert excess(model_texts(verification, rng)) > 0


def test_the_methods_accept_equally_often_and_differ_in_text() -> None:
    probs, drafts, lengths = drafted(3)
    numbers = position_uniforms(np.arange(SAMPLES), np.zeros(SAMPLES, int), 4)
    verifications = [
        verify_sampled(probs, drafts, lengths, method=method, uniforms=numbers)
        for method in METHODS
    ]
    means = [m.num_accepted.mean() for m in verifications]
    assert abs(means[0] - means[1]) < 5 * math.sqrt(2 * 2 / SAMPLES)
    assert (verifications[0].tokens != verifications[1].tokens).any()


def test_compare_gives_the_text_of_no_drafts_for_a_seed() -> None:
    def text(seed: int, guess: Any, count: int = 40) -> list[int]:
        ids = [0]
        while len(ids) <= count:
            draft = guess(ids)
            probs = MODEL[[[ids[-1], *draft]]]
            numbers = position_uniforms([seed], [len(ids)], len(draft) + 1)
            verification = verify_sampled(
                probs, [draft], [len(draft)], method="compare", uniforms=numbers
            )
            ids += verification.tokens[0, : verification.num_accepted[0] + 1].tolist()
        return ids[: count + 1]

    plain = [text(seed, lambda ids: []) for seed in range(8)]
    assert len(set(map(tuple, plain))) == 8
    for guess in (lambda ids: [1, 2, 4], lambda ids: ids[:3], lambda ids: [4] * len(ids)):
        assert [text(seed, guess) for seed in range(8)] == plain


def test_rounding_leads_to_no_impossible_token() -> None:
    # The largest number below 1, sums that round, and impossible tokens at both ends.
    probs = np.zeros((3, 2, 9), np.float32)
    probs[:, :, 2:7] = np.float32(0.2)
    probs[1, 0, 2:7] = [0.1, 0.1, 0.1, 0.1, 0.6]
    probs[2, 0] = 0
    probs[2, 0, 6] = 1
    top = np.full((3, 2), 1 - 2.0**-53)
    low = np.zeros((3, 2))
    drafts = [[3], [6], [6]]
    for method in METHODS:
        for numbers, ends in ((top, (6, 5)), (low, (2, 2))):
            verification = verify_sampled(probs, drafts, [1, 1, 1], method=method, uniforms=numbers)
            assert verification.num_accepted[2] == 1
            assert verification.tokens[2, 0] == 6
            if numbers is top and method == "reject":
                assert verification.tokens[:2, 0].tolist() == list(ends)


@pytest.mark.parametrize("method", METHODS)
def test_a_drafted_token_of_probability_0_does_not_stay(method: Any) -> None:
    probs = np.array([[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]])
    verification = verify_sampled(probs, [[0]], [1], method=method, uniforms=np.zeros((1, 2)))
    assert verification.num_accepted.tolist() == [0]
    assert verification.tokens[0, 0] == 1


def test_position_uniforms_are_even_and_belong_to_positions() -> None:
    numbers = position_uniforms(np.arange(300), np.zeros(300, int), 200)
    later = position_uniforms(np.arange(300), np.full(300, 150), 50)
    assert (numbers[:, 150:] == later).all()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(np.unique(numbers)) == numbers.size
    cells = np.bincount((numbers * 100).astype(int).ravel(), minlength=100)
    assert ((cells - 600) ** 2 / 600).sum() < 161  # one in 10,000 at 99 degrees of freedom
    for other in (numbers[:, 1:], numbers[1:]):  # neighbours in a text and neighbouring seeds
        same = numbers[: len(other), : other.shape[1]]
        assert abs(np.corrcoef(same.ravel(), other.ravel())[0, 1]) < 4 / math.sqrt(other.size)
    assert position_uniforms([-1, 2**63 - 1], [0, 2**40], 0).shape == (2, 0)


def test_a_number_that_rounding_put_outside_falls_to_a_possible_token() -> None:
    rows = np.array([[0.0, 0.0, 0.1, 0.1, 0.0]] * 2)
    outside = np.array([0.79, 1.01])  # of the part from 0.8 to 1 that is left
    assert sample(Arrays(rows), rows, outside, np.full(2, 0.8)).tolist() == [2, 3]
