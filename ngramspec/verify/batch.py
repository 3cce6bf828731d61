"""DraftBatch: checked drafts of several requests, padded to one length, and their verification."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ngramspec.errors import InputError
from ngramspec.verify.arrays import Array, Arrays, as_array, is_float

LARGEST_TOKEN = 2**31 - 1


class Verification(NamedTuple):
    """The outcome of a target's pass over drafts; arrays of its library, on its device."""

    num_accepted: Any  # int32 (batch,): drafted tokens that stay, 0..length of the draft
    tokens: Any  # int32 (batch, 1 + max_draft): these, then the target's own, then -1


class DraftBatch(NamedTuple):
    """Valid drafts."""

    tokens: Array  # int64 (batch, max_draft): 0 after a draft's end, so that all are valid indices
    lengths: Array  # int64 (batch,)
    drafted: Array  # bool (batch, max_draft): False after a draft's end
    judged: Array  # bool (batch, 1 + max_draft): rows of the target that count


def read_batch(
    arrays: Arrays, tokens: Any, lengths: Any, rows: Array, name: str = "drafts"
) -> DraftBatch:
    """Return drafts as a DraftBatch, or raise InputError.

    Args:
        arrays: The target's library.
        tokens: Whole numbers, shape (batch, max_draft); anything after a draft's end.
        lengths: Whole numbers, shape (batch,).
        rows: The target's, shape (batch, 1 + max_draft) or (batch, 1 + max_draft, vocab_size).
        name: Of tokens, for messages.
    """
    ids = arrays.ints(tokens, name, ("batch", "max_draft"))
    sizes = arrays.ints(lengths, "lengths", ("batch",))
    batch, width = ids.shape
    if tuple(rows.shape[:2]) != (batch, 1 + width) or sizes.shape[0] != batch:
        raise InputError(
            f"{name} of shape ({batch}, {width}) need ({batch}, {1 + width}) rows of the "
            f"target and ({batch},) lengths, got {tuple(rows.shape[:2])} and {tuple(sizes.shape)}"
        )
    refuse(arrays, (sizes < 0) | (sizes > width), f"lengths must be in 0..{width}", sizes)
    drafted = arrays.range(width) < sizes[:, None]
    most = rows.shape[2] - 1 if rows.ndim == 3 else LARGEST_TOKEN
    wrong = drafted & ((ids < 0) | (ids > most))
    refuse(arrays, wrong, f"{name} must be token ids in 0..{most}", ids)
    padded = arrays.lib.where(drafted, ids, arrays.lib.zeros_like(ids))
    return DraftBatch(padded, sizes, drafted, arrays.range(1 + width) <= sizes[:, None])


def read_chosen(arrays: Arrays, target: Any) -> Array:
    """Return logits or token ids unchanged; InputError if the array is neither."""
    array = arrays.put(as_array(target, "logits"))
    if array.ndim != 3 or not is_float(array):
        return arrays.ints(array, "logits, unless floats of 3 axes,", ("batch", "1 + max_draft"))
    if array.shape[2] < 1:
        raise InputError(f"logits must be of at least one token, got shape {tuple(array.shape)}")
    return array


def choose(arrays: Arrays, target: Array, batch: DraftBatch) -> Array:
    """Return the target's choices, int64 (batch, 1 + max_draft); InputError for invalid ids."""
    if target.ndim == 3:
        return arrays.lib.argmax(target, axis=-1)
    wrong = batch.judged & ((target < 0) | (target > LARGEST_TOKEN))
    refuse(arrays, wrong, f"ids of the target must be in 0..{LARGEST_TOKEN}", target)
    return target


def match(arrays: Arrays, chosen: Array, batch: DraftBatch) -> Verification:
    """Return each draft as far as the target chose the same tokens, then the target's own token."""
    counts = leading(arrays, batch.drafted & (batch.tokens == chosen[:, :-1]))
    return emitted(arrays, counts, chosen)


def leading(arrays: Arrays, right: Array) -> Array:
    """Return how many of each row are True before the first that is not, int64 (batch,)."""
    ones = arrays.lib.cumprod(arrays.int32(right), axis=1)
    return arrays.lib.sum(ones, axis=1, dtype=arrays.lib.int64)


def emitted(arrays: Arrays, counts: Array, tokens: Array) -> Verification:
    """Return the first counts[i] + 1 tokens of each row i, then -1."""
    mask = arrays.range(tokens.shape[1]) <= counts[:, None]
    padded = arrays.lib.where(mask, tokens, arrays.lib.full_like(tokens, -1))
    return Verification(arrays.int32(counts), arrays.int32(padded))


def refuse(arrays: Arrays, wrong: Array, message: str, values: Array) -> None:
    """Raise InputError with the message, the first wrong place and its value, if any is wrong."""
    if bool(wrong.any()):
        place = tuple(int(index) for index in np.argwhere(arrays.host(wrong))[0])
        raise InputError(f"{message}, got {values[place].item()} in place {list(place)}")
