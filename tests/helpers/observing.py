"""Rows of logits that a pool of successors learns from."""

from __future__ import annotations

import numpy as np

from ngramspec import SuccessorPool, create_drafter


def observe(pool: SuccessorPool, token_ids: list[int], vocab_size: int) -> None:
    """Show a pool one row for every token of a text; the row likes what comes next best."""
    drafter = create_drafter("recycle", pool=pool)
    drafter.begin(0, token_ids[:1])
    for at in range(1, len(token_ids)):
        row = np.zeros((1, vocab_size), np.float32)
        row[0, [token_ids[at], token_ids[at - 1], at % vocab_size]] = 4, 3, 2.5
        drafter.observe_logits(0, row)
        drafter.accept(0, token_ids[at : at + 1], 0)
