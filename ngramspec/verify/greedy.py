"""Greedy verification: a draft is accepted as far as the target chose the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ngramspec.errors import InputError
from ngramspec.verify.arrays import Array, Arrays
from ngramspec.verify.batch import (
    DraftBatch,
    Verification,
    choose,
    match,
    read_batch,
    read_chosen,
    refuse,
)
from ngramspec.verify.tree import longest_path


class TreeVerification(NamedTuple):
    """The outcome of a target's pass over trees; arrays of its library, on its device."""

    num_accepted: Any  # int32 (batch,): drafted tokens that stay
    tokens: Any  # int32 (batch, 1 + max_draft): these, then the target's own, then -1
    paths: Any  # int32 (batch, max_draft): their indices in the tree, then -1


class TreeBatch(NamedTuple):
    """Valid trees."""

    drafts: DraftBatch  # their tokens
    parents: Array  # int64 (batch, max_draft): -1 after a tree's end, so that all are valid


def verify_greedy(logits: Any, drafts: Any, lengths: Any) -> Verification:
    """Return which drafted tokens the target chooses itself, and what is emitted.

    Row 0 of a request follows the token before its draft, row 1 + i the drafted token i. Instead of
    logits, pass the ids that the engine's own sampler chose from each row: the text is then what
    that sampler gives without drafts, provided that a row's randomness depends only on the token's
    position in the text.

    Args:
        logits: Floats, shape (batch, 1 + max_draft, vocab_size), vocab_size >= 1; or ids chosen,
            whole numbers >= 0, shape (batch, 1 + max_draft). numpy, torch, or what numpy reads.
            Of equal logits the first counts. NaN is not checked for. Not modified, not kept.
        drafts: Token ids, whole numbers, shape (batch, max_draft); moved to the device of logits.
            Anything may follow a draft's end, in rows of logits too.
        lengths: Tokens of each draft, whole numbers, shape (batch,), 0..max_draft.

    Returns:
        Verification: new arrays of the library of logits, on its device. For request i, call
        Drafter.accept with tokens[i, : n + 1] and n = num_accepted[i].

    Raises:
        InputError: An argument is not as described, or a drafted token is not in the vocabulary.

    Cost: O(batch * max_draft * vocab_size) for logits, without vocab_size for ids; a few device
    syncs. Threads: safe. Source: Leviathan et al. (arXiv 2211.17192), temperature 0.
    """
    arrays = Arrays(logits)
    target = read_chosen(arrays, logits)
    batch = read_batch(arrays, drafts, lengths, target)
    return match(arrays, choose(arrays, target, batch), batch)


def verify_tree(logits: Any, tokens: Any, parents: Any, lengths: Any) -> TreeVerification:
    """Return the path of each tree that the target chooses itself, and what is emitted.

    verify_greedy for trees: row 0 of a request follows the token before its tree, row 1 + i the
    tree's token i. With ids that an engine's own sampler chose, sampled text keeps its
    distribution.

    Args:
        logits: As for verify_greedy, or the ids chosen.
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
    trees = read_trees(arrays, tokens, parents, lengths, target)
    return match_trees(arrays, choose(arrays, target, trees.drafts), trees)


def read_trees(arrays: Arrays, tokens: Any, parents: Any, lengths: Any, rows: Array) -> TreeBatch:
    """Return trees as a TreeBatch, or raise InputError; rows as for read_batch."""
    drafts = read_batch(arrays, tokens, lengths, rows, "tokens")
    above = arrays.ints(parents, "parents", ("batch", "max_draft"))
    if above.shape != drafts.tokens.shape:
        raise InputError(
            f"parents must be of shape {tuple(drafts.tokens.shape)}, got {tuple(above.shape)}"
        )
    wrong = drafts.drafted & ((above < -1) | (above >= arrays.range(above.shape[1])))
    refuse(arrays, wrong, "parents must be -1 or the index of an earlier token", above)
    none = arrays.lib.full_like(above, -1)
    return TreeBatch(drafts, arrays.lib.where(drafts.drafted, above, none))


def match_trees(arrays: Arrays, chosen: Array, trees: TreeBatch) -> TreeVerification:
    """Return the path of each tree that the target chose, then the target's own token."""
    drafted, above = arrays.host(trees.drafts.tokens), arrays.host(trees.parents)
    picked = arrays.host(chosen)
    paths = [
        longest_path(above[i, :n], drafted[i, :n], picked[i, : n + 1]).tolist()
        for i, n in enumerate(arrays.host(trees.drafts.lengths))
    ]
    own = [int(picked[i, path[-1] + 1 if path else 0]) for i, path in enumerate(paths)]
    return accepted(arrays, trees, paths, own)


def accepted(
    arrays: Arrays, trees: TreeBatch, paths: Sequence[list[int]], own: Sequence[int]
) -> TreeVerification:
    """Return accepted paths and the target's own tokens after them as padded arrays."""
    drafted = arrays.host(trees.drafts.tokens)
    tokens = np.full((drafted.shape[0], drafted.shape[1] + 1), -1, np.int32)
    padded = np.full(drafted.shape, -1, np.int32)
    for i, path in enumerate(paths):
        padded[i, : len(path)] = path
        tokens[i, : len(path)] = drafted[i, path]
        tokens[i, len(path)] = own[i]
    counts = np.array([len(path) for path in paths], np.int32)
    return TreeVerification(arrays.put(counts), arrays.put(tokens), arrays.put(padded))
