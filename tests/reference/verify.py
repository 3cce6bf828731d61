"""Verification of padded drafts, request by request and token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def padded(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    return [[*row, *[-1] * (width - len(row))] for row in rows]


def greedy(logits: Any, drafts: Any, lengths: Any) -> list[list[int]]:
    """The tokens that each request emits."""
    return _each(drafts, lengths, lambda i, j, _: int(np.argmax(logits[i][j])))


def compare(probs: Any, drafts: Any, lengths: Any, uniforms: Any) -> list[list[int]]:
    return _each(drafts, lengths, lambda i, j, _: sample(probs[i][j], uniforms[i][j]))


def reject(probs: Any, drafts: Any, lengths: Any, uniforms: Any) -> list[list[int]]:
    def token(i: int, j: int, drafted: int | None) -> int:
        row = np.array(probs[i][j], dtype=float)
        u = uniforms[i][j]
        if drafted is None:
            return sample(row, u)
        p = row[drafted] / row.sum()
        if u < p:
            return drafted
        row[drafted] = 0
        return sample(row, (u - p) / (1 - p))

    return _each(drafts, lengths, token)


def sample(row: Any, u: float) -> int:
    """The token that a number in [0, 1) falls to."""
    wanted, passed = u * sum(map(float, row)), 0.0
    for token, weight in enumerate(row):
        passed += float(weight)
        if passed > wanted:
            return token
    return max(token for token, weight in enumerate(row) if weight > 0)


def _each(
    drafts: Any, lengths: Any, choose: Callable[[int, int, int | None], int]
) -> list[list[int]]:
    texts = []
    for i, length in enumerate(lengths):
        text: list[int] = []
        for j in range(length + 1):
            drafted = int(drafts[i][j]) if j < length else None
            text.append(choose(i, j, drafted))
            if text[-1] != drafted:
                break
        texts.append(text)
    return texts
