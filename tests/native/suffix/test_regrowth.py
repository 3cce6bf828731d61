"""Lines of suffix in the making, and a prompt that takes the text back while it needs them."""

from __future__ import annotations

import numpy as np

from ngramspec import create_drafter


def test_a_longer_prompt_that_shares_little_takes_lines_in_the_making() -> None:
    """Room is reserved for it in the next lines before the text is taken back."""
    rng = np.random.default_rng(7)
    drafter = create_drafter("suffix", share=False)
    text = rng.integers(0, 900, 4090, dtype=np.int32)
    drafter.begin(0, text[:2000])
    for at in range(2000, len(text), 10):  # the next lines are filled on the way
        drafter.accept(0, text[at : at + 10], 0)
    longer = np.concatenate([text[:10], rng.integers(0, 900, 2600, dtype=np.int32)])
    longer = np.concatenate([longer, longer])
    drafter.begin(0, longer)
    assert drafter.check() == ""
    fresh = create_drafter("suffix", share=False)
    fresh.begin(0, longer)
    for one in (drafter, fresh):
        one.accept(0, longer[:20], 0)
    assert drafter.propose(0, 16).tolist() == fresh.propose(0, 16).tolist() != []
