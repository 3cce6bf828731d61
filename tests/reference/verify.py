"""Verification of padded drafts and trees, request by request and token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def padded(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    return [[*row, *[-1] * (width - len(row))] for row in rows]


def chains(drafts: Any) -> list[list[int]]:
    """The parents of drafts without branches."""
    return [[*range(-1, len(row) - 1)] for row in drafts]


def greedy(logits: Any, drafts: Any, lengths: Any) -> list[list[int]]:
    """The tokens that each request emits."""
    return tree_greedy(logits, drafts, chains(drafts), lengths)


def compare(probs: Any, drafts: Any, lengths: Any, uniforms: Any) -> list[list[int]]:
    return tree_compare(probs, drafts, chains(drafts), lengths, uniforms)


def reject(probs: Any, drafts: Any, lengths: Any, uniforms: Any) -> list[list[int]]:
    return tree_reject(probs, drafts, chains(drafts), lengths, uniforms)


def sample(row: Any, u: float) -> int:
    """The token that a number in [0, 1) falls to."""
    bound, passed = u * sum(map(float, row)), 0.0
    for token, weight in enumerate(row):
        passed += float(weight)
        if passed > bound:
            return token
    return max(token for token, weight in enumerate(row) if weight > 0)


def tree_greedy(logits: Any, tokens: Any, parents: Any, lengths: Any) -> list[list[int]]:
    """The tokens that each request emits, for trees."""
    return _each_tree(tokens, parents, lengths, lambda i, row, *_: int(np.argmax(logits[i][row])))


def tree_compare(
    probs: Any, tokens: Any, parents: Any, lengths: Any, uniforms: Any
) -> list[list[int]]:
    return _each_tree(
        tokens, parents, lengths, lambda i, row, depth, _: sample(probs[i][row], uniforms[i][depth])
    )


def tree_reject(
    probs: Any, tokens: Any, parents: Any, lengths: Any, uniforms: Any
) -> list[list[int]]:
    """One drafted token after the other: the next one by what is left without those before."""

    def token(i: int, row: int, depth: int, drafted: list[int]) -> int:
        left = np.array(probs[i][row], dtype=float)
        u = uniforms[i][depth]
        for one in drafted:
            p = left[one] / left.sum()
            if u < p:
                return one
            left[one] = 0
            u = (u - p) / (1 - p)
        return sample(left, u)

    return _each_tree(tokens, parents, lengths, token)


def _each_tree(
    tokens: Any, parents: Any, lengths: Any, choose: Callable[[int, int, int, list[int]], int]
) -> list[list[int]]:
    texts = []
    for i, length in enumerate(lengths):
        text: list[int] = []
        at: int | None = -1
        while at is not None:
            after: dict[int, int] = {}  # of equal siblings the first one
            for node in range(length):
                if parents[i][node] == at:
                    after.setdefault(int(tokens[i][node]), node)
            text.append(choose(i, at + 1, len(text), list(after)))
            at = after.get(text[-1])
        texts.append(text)
    return texts
