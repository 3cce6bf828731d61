"""Helpers to verify draft trees: attention masks, positions, and the accepted path.

A tree is what Drafter.propose_tree returns: tokens, and for each token the index of its parent, -1
if it directly follows the text emitted so far. Parents come before their children. Stateless, so
thread-safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.errors import InputError

Ids = npt.NDArray[np.int32]


def ancestor_mask(parents: npt.ArrayLike, context: int = 0) -> npt.NDArray[np.bool_]:
    """Return which tokens each token of a tree may attend to: the text, its ancestors and itself.

    Args:
        parents: Whole numbers, shape (n,), -1 <= parents[i] < i.
        context: Columns for the text before the tree, all True, >= 0.

    Returns:
        bool, shape (n, context + n), a new array: [i, context + j] is True where j is i or an
        ancestor of i.

    Raises:
        InputError: An argument is not as described.

    Cost: O(n * (context + n)). Source: SpecInfer (arXiv 2305.09781), tree attention.
    """
    above = _parents(parents)
    if context < 0:
        raise InputError(f"context must be >= 0, got {context}")
    mask = np.zeros((len(above), context + len(above)), np.bool_)
    mask[:, :context] = True
    for i, parent in enumerate(above):
        if parent >= 0:
            mask[i] = mask[parent]
        mask[i, context + i] = True
    return mask


def positions(parents: npt.ArrayLike) -> Ids:
    """Return the depth of each token in the tree.

    Args:
        parents: Whole numbers, shape (n,), -1 <= parents[i] < i.

    Returns:
        int32, shape (n,), 0 for tokens that directly follow the text; a token is verified at the
        position of the text's next token plus its depth. A new array.

    Raises:
        InputError: parents is not as described.

    Cost: O(n).
    """
    depths: list[int] = []
    for parent in _parents(parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return np.array(depths, np.int32)


def longest_path(parents: npt.ArrayLike, tokens: npt.ArrayLike, chosen: npt.ArrayLike) -> Ids:
    """Return the path that the target agrees with: greedy verification of a tree.

    Then call Drafter.accept with tokens[path], followed by the target's own token
    chosen[path[-1] + 1] (chosen[0] if path is empty), and len(path).

    Args:
        parents: Whole numbers, shape (n,), -1 <= parents[i] < i.
        tokens: Token ids, shape (n,); where siblings are equal, the first counts.
        chosen: Token ids, shape (n + 1,): what the target chooses after the text, then after each
            token of the tree.

    Returns:
        int32, shape (k,), 0 <= k <= n: the indices of the accepted tokens, in order. A new array.

    Raises:
        InputError: An argument is not as described.

    Cost: O(n). Source: SpecInfer (arXiv 2305.09781), algorithm 2, greedy.
    """
    above = _parents(parents)
    ids, choices = _ids(tokens, "tokens"), _ids(chosen, "chosen")
    if not len(ids) == len(above) == len(choices) - 1:
        raise InputError(
            f"expected as many tokens as parents and one choice more, got {len(above)} parents, "
            f"{len(ids)} tokens and {len(choices)} choices"
        )
    path: list[int] = []
    at = -1
    for i, (parent, token) in enumerate(zip(above, ids, strict=True)):
        if parent == at and token == choices[at + 1]:
            path.append(i)
            at = i
    return np.array(path, np.int32)


def _parents(values: npt.ArrayLike) -> list[int]:
    parents = _ids(values, "parents")
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise InputError(f"parents[{i}] must be in -1..{i - 1}, got {parent}")
    return parents


def _ids(values: npt.ArrayLike, name: str) -> list[int]:
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise InputError(f"{name} must be whole numbers of shape (n,): {error}") from None
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InputError(
            f"{name} must be whole numbers of shape (n,), got {array.dtype} of {array.shape}"
        )
    ids: list[Any] = array.tolist()
    return ids
