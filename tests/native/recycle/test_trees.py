"""Trees of recycle: how wide they are."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec import create_drafter
from reference.source import widest

# 20 is so unlikely that it joins the tree after 11 and 12 have filled the depth below it.
SAID = {
    1: [(10, 0.99), (20, 0.005)],
    10: [(11, 0.5), (12, 0.49)],
    20: [(21, 0.95), (22, 0.04)],
}


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_depth_that_is_full_stays_full_when_a_token_joins_above_it(width: int) -> None:
    drafter = create_drafter("recycle", min_probability=0.0)
    for last, successors in SAID.items():
        drafter.begin(0, [last])
        ids, p = zip(*successors, strict=True)
        drafter.observe_top(0, np.array([ids], np.int32), np.log(np.array([p], np.float32)))
    drafter.begin(0, [1])
    tokens, parents, _ = drafter.propose_tree(0, 30, width)
    assert widest(parents.tolist()) == width
    assert (20 in tokens) == (width > 1)
    assert drafter.check() == ""
