"""Verification of draft trees: the longest path that the target chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ngramspec.errors import InputError
from ngramspec.tree import longest_path
from ngramspec.verify.arrays import Arrays
from ngramspec.verify.batch import choose, read_batch, read_chosen


class TreeVerification(NamedTuple):
    """The outcome of a target's pass over trees; arrays of its library, on its device."""

    num_accepted: Any  # int32 (batch,): drafted tokens that stay
    tokens: Any  # int32 (batch, 1 + max_draft): these, then the target's own, then -1
    paths: Any  # int32 (batch, max_draft): their indices in the tree, then -1


def verify_tree(logits: Any, tokens: Any, parents: Any, lengths: Any) -> TreeVerification:
    """Return the path of each tree that the target chooses itself, and what is emitted.

    Row 0 of a request follows the token before its tree, row 1 + i the tree's token i. Instead of
    logits, pass the ids that the engine's own sampler chose from each row: sampled text keeps its
    distribution.

    Args:
        logits: Floats, shape (batch, 1 + max_draft, vocab_size), vocab_size >= 1; or ids chosen,
            whole numbers >= 0, shape (batch, 1 + max_draft). numpy, torch, or what numpy reads.
            Of equal logits the first counts. NaN is not checked for. Not modified, not kept.
        tokens: Token ids, whole numbers, shape (batch, max_draft), as Drafter.propose_tree gives
            them, padded with anything.
        parents: Whole numbers, shape (batch, max_draft), -1 <= parents[., i] < i, padded with
            anything.
        lengths: Tokens of each tree, whole numbers, shape (batch,), 0..max_draft.

    Returns:
        TreeVerification: new arrays of the library of logits, on its device. For request i,
        call Drafter.accept with tokens[i, : n + 1] and n = num_accepted[i].

    Raises:
        InputError: An argument is not as described, or a drafted token is not in the vocabulary.

    Cost: O(batch * max_draft * vocab_size) for logits where they lie, then a loop over the trees'
    tokens on the host. Threads: safe. Source: SpecInfer (arXiv 2305.09781), algorithm 2, greedy.
    """
    arrays = Arrays(logits)
    target = read_chosen(arrays, logits)
    batch = read_batch(arrays, tokens, lengths, target, "tokens")
    above = arrays.ints(parents, "parents", ("batch", "max_draft"))
    if above.shape != batch.tokens.shape:
        raise InputError(
            f"parents must be of shape {tuple(batch.tokens.shape)}, got {tuple(above.shape)}"
        )
    chosen = arrays.host(choose(arrays, target, batch))
    said, links = arrays.host(batch.tokens), arrays.host(above)
    counts = np.zeros(len(said), np.int32)
    emitted = np.full((len(said), said.shape[1] + 1), -1, np.int32)
    paths = np.full(said.shape, -1, np.int32)
    for i, n in enumerate(arrays.host(batch.lengths)):
        try:
            path = longest_path(links[i, :n], said[i, :n], chosen[i, : n + 1])
        except InputError as error:
            raise InputError(f"tree {i}: {error}") from None
        counts[i] = len(path)
        paths[i, : len(path)] = path
        emitted[i, : len(path)] = said[i, path]
        emitted[i, len(path)] = chosen[i, path[-1] + 1 if len(path) else 0]
    return TreeVerification(arrays.put(counts), arrays.put(emitted), arrays.put(paths))
