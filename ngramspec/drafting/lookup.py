"""Look up a text in a statistics file: its draft and its followers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec._native.mod.pool import HashPool
from ngramspec.drafting.create import create_drafter
from ngramspec.errors import InputError
from ngramspec.files.statistics import POOL_KIND, Statistics


def draft_after(found: Statistics, token_ids: Sequence[int], max_draft: int) -> list[int]:
    """Return the draft after a text; the file does not change.

    For a file of n-grams, ngram-cache drafts with the file as its static cache; the text counts
    too, as in a request. For a pool, it is ngram-mod's draft without a minimum length.

    Args:
        found: A file of n-grams or a pool.
        token_ids: The text, not empty.
        max_draft: Longest draft, in tokens, >= 1.

    Raises:
        InputError: The file is an index, or the text is empty or too short for the pool.
    """
    found.need_statistics("look up")
    if not len(token_ids):
        raise InputError("the text is empty")
    if found.kind == POOL_KIND:
        return _pool_draft(found, token_ids, max_draft)
    drafter = create_drafter("ngram-cache", static=found.cache, n_draft=max_draft)
    drafter.begin(0, token_ids[:-1])
    drafter.accept(0, token_ids[-1:], 0)
    draft: list[int] = drafter.propose(0, max_draft).tolist()
    return draft


def followers_after(
    found: Statistics, token_ids: Sequence[int], size: int, most: int = 5
) -> dict[str, Any]:
    """Return what followed the last `size` tokens of a text in a file's corpus, as plain data.

    Args:
        found: A file of n-grams.
        token_ids: The text; one shorter than `size` has no followers.
        size: Tokens of an n-gram, 1..4.
        most: Followers to return, the most frequent first.
    """
    ngram = list(token_ids[-size:])
    followers = found.cache.followers(ngram) if len(ngram) == size else {}
    total = sum(followers.values())
    return {
        "size": size,
        "token_ids": ngram,
        "count": total,
        "num_followers": len(followers),
        "followers": [
            {"token_id": token, "count": count, "share": count / total}
            for token, count in list(followers.items())[:most]
        ],
    }


def _pool_draft(statistics: Statistics, token_ids: Sequence[int], most: int) -> list[int]:
    """Return the pool's continuation of the text, looked up token by token."""
    shape, length = statistics.shape, len(token_ids)
    if length < shape.n_match:
        raise InputError(
            f"the text has {length} token{'s' * (length != 1)}, lookups in {statistics.path} take "
            f"{shape.n_match}"
        )
    pool = HashPool(
        shape.capacity,
        shape.check_bits,
        shape.max_occupancy,
        statistics.vocab_size,
        statistics.cells.astype(np.uint32),
        statistics.counters.astype(np.int64),
    )
    tail = list(token_ids[-shape.n_match :])
    draft: list[int] = []
    while len(draft) < most and (token := pool.lookup(np.array(tail, np.int32))) >= 0:
        draft.append(token)
        tail = [*tail[1:], token]
    return draft
