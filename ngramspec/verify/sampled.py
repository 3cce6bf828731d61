"""Sampled verification: texts with drafts have the distribution of texts without.

An n-gram draft is certain of its tokens, so the rule of speculative sampling is simple: a drafted
token is accepted with the target's probability of it; otherwise another token takes its place.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ngramspec.errors import InputError
from ngramspec.verify.arrays import Array, Arrays
from ngramspec.verify.batch import (
    DraftBatch,
    Verification,
    emitted,
    leading,
    match,
    read_batch,
    refuse,
)
from ngramspec.verify.greedy import TreeBatch, TreeVerification, accepted, match_trees, read_trees
from ngramspec.verify.tree import positions

TOLERANCE = 0.01  # of a row's sum; rows of bfloat16 are off by a few thousandths
_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio


def verify_sampled(
    probs: Any,
    drafts: Any,
    lengths: Any,
    *,
    method: Literal["compare", "reject"],
    uniforms: Any = None,
    generator: Any = None,
) -> Verification:
    """Return which drafted tokens stay when the target samples, and what is emitted.

    Both methods keep a drafted token with exactly the target's probability of it, and emit tokens
    of exactly the target's distribution. "compare" samples a token from every row and keeps the
    draft as far as it is the same: with uniforms that depend only on the position
    (`position_uniforms`), the text is the same with and without drafts. "reject" looks only at the
    drafted tokens' probabilities, and samples once per request: from the row where the first one
    failed, without that token, or from the last row when all stay. It is cheaper for large
    vocabularies; the text differs from that without drafts, its distribution does not.

    Args:
        probs: The distributions to sample from, after temperature, top-k, top-p: floats >= 0 that
            sum to 1 within 0.01 (and are normalised by it), shape (batch, 1 + max_draft,
            vocab_size). Row 0 of a request follows the token before its draft, row 1 + i the
            drafted token i. numpy, torch, or what numpy reads. Not modified, not kept.
        drafts: Token ids, whole numbers, shape (batch, max_draft); moved to the device of probs.
            Anything may follow a draft's end, in rows of probs and uniforms too.
        lengths: Tokens of each draft, whole numbers, shape (batch,), 0..max_draft.
        method: "compare" or "reject".
        uniforms: Independent numbers in [0, 1), floats, shape (batch, 1 + max_draft), preferably
            float64: 24 bits round probabilities to 6e-8. Or give a generator.
        generator: numpy.random.Generator for numpy, torch.Generator for torch; advanced by
            batch * (1 + max_draft) numbers, by none when the call raises.

    Returns:
        Verification: new arrays of the library of probs, on its device. For request i, call
        Drafter.accept with tokens[i, : n + 1] and n = num_accepted[i].

    Raises:
        InputError: An argument is not as described, or a drafted token is not in the vocabulary.

    Cost: O(batch * max_draft * vocab_size). "compare" needs about 30 more bytes per probability,
    "reject" as much for one row per request. Sums are float64, which the device must support.
    Threads: safe without a shared generator. Source: Leviathan et al. (arXiv 2211.17192), Chen et
    al. (arXiv 2302.01318), drafts of probability 1; "compare" is llama.cpp's sample and accept.
    """
    arrays = Arrays(probs)
    rows = arrays.floats(probs, "probs", ("batch", "1 + max_draft", "vocab_size"))
    batch = read_batch(arrays, drafts, lengths, rows)
    check_method(method)
    # After a draft's end anything may follow, NaN too; it is ignored.
    with np.errstate(invalid="ignore", over="ignore"):
        sums = read_sums(arrays, rows, batch)
        numbers = read_numbers(arrays, batch, uniforms, generator)
        if method == "compare":
            return match(arrays, sample(arrays, rows, numbers), batch)
        return _reject(arrays, rows, sums, numbers, batch)


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
        return _reject_trees(arrays, rows, sums, numbers, trees)


def position_uniforms(seeds: Any, positions: Any, width: int) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) that depend only on a request's seed and a token's position.

    With them and method="compare", verify_sampled gives one text per seed, whatever is drafted.

    Args:
        seeds: Whole numbers of 64 bits, shape (batch,).
        positions: Tokens of each request so far, whole numbers >= 0, shape (batch,): the position
            of the token that row 0 yields.
        width: 1 + max_draft, >= 0.

    Returns:
        float64, shape (batch, width), multiples of 2**-53: [i, j] belongs to seeds[i] and
        positions[i] + j. A new array.

    Raises:
        InputError: An argument is not as described.

    Cost: O(batch * width). Threads: safe. Source: SplitMix64 (Steele et al. 2014), by counter.
    """
    arrays = Arrays(None)
    keys = arrays.ints(seeds, "seeds", ("batch",)).astype(np.uint64)
    starts = arrays.ints(positions, "positions", ("batch",))
    if keys.shape != starts.shape or (starts < 0).any() or width < 0:
        raise InputError(
            f"expected as many positions as seeds, all >= 0, and width >= 0, got {keys.shape[0]} "
            f"seeds, positions {starts.tolist()} and width {width}"
        )
    places = (starts[:, None] + np.arange(1, width + 1)).astype(np.uint64)
    bits = _mix(_mix(keys + _STRIDE)[:, None] + places * _STRIDE)
    return (bits >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def check_method(method: str) -> None:
    """Raise InputError unless there is such a method."""
    if method not in ("compare", "reject"):
        raise InputError(f"method must be 'compare' or 'reject', got {method!r}")


def read_sums(arrays: Arrays, rows: Array, batch: DraftBatch) -> Array:
    """Return what each row sums to; InputError unless rows that count are distributions."""
    if rows.shape[2] < 1:
        raise InputError(f"probs must be of at least one token, got shape {tuple(rows.shape)}")
    sums = arrays.lib.sum(rows, axis=-1, dtype=arrays.lib.float64)
    least = arrays.lib.amin(rows, axis=-1)
    # NaN is not >= anything.
    wrong = batch.judged & ~((sums >= 1 - TOLERANCE) & (sums <= 1 + TOLERANCE))
    refuse(arrays, wrong, f"rows of probs must sum to 1 within {TOLERANCE}", sums)
    refuse(arrays, batch.judged & ~(least >= 0), "probs must be >= 0", least)
    return sums


def read_numbers(arrays: Arrays, batch: DraftBatch, uniforms: Any, generator: Any) -> Array:
    """Return the random numbers of a call, float64 (batch, 1 + max_draft), or raise InputError."""
    if (uniforms is None) == (generator is None):
        which = "none" if uniforms is None else "both"
        raise InputError(f"expected uniforms or a generator, got {which}")
    shape = tuple(batch.judged.shape)
    if uniforms is None:
        return arrays.uniforms(generator, shape)
    numbers = arrays.floats(uniforms, "uniforms", ("batch", "1 + max_draft"))
    if tuple(numbers.shape) != shape:
        raise InputError(f"uniforms must be of shape {shape}, got {tuple(numbers.shape)}")
    wrong = batch.judged & ~((numbers >= 0) & (numbers < 1))
    refuse(arrays, wrong, "uniforms must be in [0, 1)", numbers)
    return arrays.wide(numbers)


def _reject(
    arrays: Arrays, rows: Array, sums: Array, numbers: Array, batch: DraftBatch
) -> Verification:
    lib = arrays.lib
    # One more column, so that a fully accepted draft has a token to look up too.
    tokens = lib.concatenate([batch.tokens, lib.zeros_like(batch.lengths)[:, None]], axis=1)
    likely = arrays.wide(arrays.gather(rows, tokens))
    counts = leading(arrays, batch.drafted & (numbers * sums < likely)[:, :-1])
    requests = arrays.range(counts.shape[0])
    failed = counts < batch.lengths
    taken = lib.where(failed, arrays.gather(tokens, counts), lib.full_like(counts, -1))
    row = arrays.wide(rows[requests, counts])
    rest = lib.where(arrays.range(row.shape[1]) == taken[:, None], lib.zeros_like(row), row)
    lost = arrays.gather(likely, counts)
    own = sample(
        arrays, rest, arrays.gather(numbers, counts), lib.where(failed, lost, lib.zeros_like(lost))
    )
    places = arrays.range(tokens.shape[1]) == counts[:, None]
    return emitted(arrays, counts, lib.where(places, own[:, None], tokens))


def sample(arrays: Arrays, rows: Array, numbers: Array, before: Array | float = 0.0) -> Array:
    """Return the token whose part of [0, before + sum of the row) each number falls into.

    The first part, of size `before`, belongs to a token that failed: the number is known to lie
    beyond it, and is uniform over the rest, as a new one would be.
    """
    lib = arrays.lib
    rows = arrays.wide(rows)
    ends = lib.cumsum(rows, axis=-1)
    possible = rows > 0
    total = lib.amax(lib.where(possible, ends, lib.zeros_like(ends)), axis=-1)
    # Rounding must not lead past the last token, nor to one of probability 0.
    points = lib.minimum(
        numbers * (total + before) - before, lib.nextafter(total, lib.zeros_like(total))
    )
    return lib.argmax(arrays.int32(possible & (ends > points[..., None])), axis=-1)


def _depths(arrays: Arrays, trees: TreeBatch) -> Array:
    """Return how many drafted tokens precede what each row of the target says."""
    above, sizes = arrays.host(trees.parents), arrays.host(trees.drafts.lengths)
    depths = np.zeros((above.shape[0], above.shape[1] + 1), np.int64)
    for i, n in enumerate(sizes):
        depths[i, 1 : n + 1] = positions(above[i, :n]) + 1
    return arrays.put(depths)


def _reject_trees(
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
