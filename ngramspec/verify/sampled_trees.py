"""Sampled verification of trees: texts with trees have the distribution of texts without."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ngramspec.verify.arrays import Array, Arrays
from ngramspec.verify.sampled import check_method, read_numbers, read_sums, sample
from ngramspec.verify.tree import positions
from ngramspec.verify.trees import (
    TreeBatch,
    TreeVerification,
    accepted,
    match_trees,
    read_trees,
)


def verify_tree_sampled(
    probs: Any,
    tokens: Any,
    parents: Any,
    lengths: Any,
    *,
    method: Literal["compare", "reject"],
    uniforms: Any = None,
    generator: Any = None,
) -> TreeVerification:
    """Return the path of each tree that stays when the target samples, and what is emitted.

    verify_sampled for trees, and the same for a tree without branches. Where a token has several
    drafted after it, each of them stays with exactly the target's probability of it; if none does,
    another token is emitted with the target's probability of it.

    Args:
        probs: As for verify_sampled; row 0 of a request follows the token before its tree, row
            1 + i the tree's token i.
        tokens, parents, lengths: As for verify_tree. Of equal siblings the first counts.
        method: "compare" samples a token from every row and keeps the path that says the same: with
            `position_uniforms` the text is the same with and without trees. "reject" looks only at
            the drafted tokens' probabilities, and samples once per request.
        uniforms: Independent numbers in [0, 1), floats, shape (batch, 1 + max_draft): number d of a
            request is for its token after d drafted ones, whichever they are. Or give a generator.
        generator: As for verify_sampled.

    Returns:
        TreeVerification: new arrays of the library of probs, on its device. For request i, call
        Drafter.accept with tokens[i, : n + 1] and n = num_accepted[i].

    Raises:
        InputError: An argument is not as described, or a drafted token is not in the vocabulary.

    Cost: as verify_sampled, and a loop over the trees' tokens on the host. Threads: safe without a
    shared generator. Source: SpecInfer (arXiv 2305.09781), algorithm 2, multi-step speculative
    sampling, for drafts of probability 1; one number serves all siblings.
    """
    arrays = Arrays(probs)
    rows = arrays.floats(probs, "probs", ("batch", "1 + max_draft", "vocab_size"))
    trees = read_trees(arrays, tokens, parents, lengths, rows)
    check_method(method)
    # After a tree's end anything may follow, NaN too; it is ignored.
    with np.errstate(invalid="ignore", over="ignore"):
        sums = read_sums(arrays, rows, trees.drafts)
        numbers = read_numbers(arrays, trees.drafts, uniforms, generator)
        if method == "compare":
            by_token = arrays.take(numbers, _depths(arrays, trees))
            return match_trees(arrays, sample(arrays, rows, by_token), trees)
        return _reject(arrays, rows, sums, numbers, trees)


def _depths(arrays: Arrays, trees: TreeBatch) -> Array:
    """Return how many drafted tokens precede what each row of the target says."""
    above, sizes = arrays.host(trees.parents), arrays.host(trees.drafts.lengths)
    depths = np.zeros((above.shape[0], above.shape[1] + 1), np.int64)
    for i, n in enumerate(sizes):
        depths[i, 1 : n + 1] = positions(above[i, :n]) + 1
    return arrays.put(depths)


def _reject(
    arrays: Arrays, rows: Array, sums: Array, numbers: Array, trees: TreeBatch
) -> TreeVerification:
    drafted, above = trees.drafts.tokens, trees.parents
    requests = arrays.range(drafted.shape[0])
    likely = arrays.host(arrays.wide(rows[requests[:, None], above + 1, drafted]))
    draws, totals = arrays.host(numbers), arrays.host(sums)
    paths: list[list[int]] = []
    lost: list[float] = []  # probability of the drafted tokens after the path, which failed
    failed: tuple[list[int], list[int]] = ([], [])  # their requests and ids
    for i, n in enumerate(arrays.host(trees.drafts.lengths)):
        path, gone, passed = _walk(
            arrays.host(drafted)[i, :n], arrays.host(above)[i, :n], likely[i], draws[i], totals[i]
        )
        paths.append(path)
        lost.append(passed)
        failed[0].extend([i] * len(gone))
        failed[1].extend(gone)
    ends = arrays.put(np.array([path[-1] + 1 if path else 0 for path in paths], np.int64))
    depths = arrays.put(np.array([len(path) for path in paths], np.int64))
    rest = arrays.wide(rows[requests, ends])
    rest[tuple(arrays.put(np.array(index, np.int64)) for index in failed)] = 0.0
    own = sample(
        arrays, rest, arrays.gather(numbers, depths), arrays.put(np.array(lost, np.float64))
    )
    return accepted(arrays, trees, paths, arrays.host(own).tolist())


def _walk(
    drafted: Any, above: Any, likely: Any, draws: Any, totals: Any
) -> tuple[list[int], list[int], float]:
    """Return a tree's path, the ids drafted after it, all of which failed, and their probability.

    A number picks one of the drafted tokens, laid out one after the other, or none of them.
    """
    path: list[int] = []
    gone: list[int] = []
    passed, at = 0.0, -1
    for node, (parent, token) in enumerate(zip(above.tolist(), drafted.tolist(), strict=True)):
        if parent != at or token in gone:
            continue
        if draws[len(path)] * totals[at + 1] < passed + likely[node]:
            path.append(node)
            gone, passed, at = [], 0.0, node
        else:
            gone.append(token)
            passed += float(likely[node])
    return path, gone, passed
