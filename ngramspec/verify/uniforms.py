"""Random numbers that depend on the position in a text, not on the pass or batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.errors import InputError
from ngramspec.verify.arrays import Arrays

_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio


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
