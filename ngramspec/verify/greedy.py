"""Greedy verification: a draft is accepted as far as the target chose the same tokens."""

from __future__ import annotations

from typing import Any

from ngramspec.verify.arrays import Arrays
from ngramspec.verify.batch import Verification, choose, match, read_batch, read_chosen


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
