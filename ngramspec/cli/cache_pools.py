"""Merging hash pools cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ngramspec.cli.cache_open import Statistics
from ngramspec.errors import InputError
from ngramspec.formats.cache_file import Origin
from ngramspec.formats.container import Header
from ngramspec.formats.pool_file import write_pool

CONFIDENCE_SHIFT = np.uint32(30)
CHUNK = 1 << 20
Cells = NDArray[np.uint32]


def merge_pools(found: Sequence[Statistics], output: Path, origin: Origin) -> Header:
    """Write a pool whose cells hold the most confirmed entries of all.

    Raises:
        InputError: The pools differ in shape.
    """
    shape = found[0].shape
    for other in found[1:]:
        for name in ("n_match", "capacity", "check_bits", "max_occupancy"):
            mine, theirs = getattr(shape, name), getattr(other.shape, name)
            if mine != theirs:
                raise InputError(
                    f"{other.path} has {name} {theirs}, {found[0].path} has {mine}: only pools of "
                    "one shape can be merged"
                )
    cells = found[0].cells().astype(np.uint32)  # a copy
    for other in found[1:]:
        more = other.cells()
        for at in range(0, len(cells), CHUNK):
            part = slice(at, at + CHUNK)
            cells[part] = better(cells[part], more[part])
    free_rarest(cells, int(shape.capacity * shape.max_occupancy))
    return write_pool(output, cells, shape, origin)


def better(one: Cells, other: Cells) -> Cells:
    """Return of each two cells the more confirmed one, on ties the smaller; empty cells lose."""
    first, second = one >> CONFIDENCE_SHIFT, other >> CONFIDENCE_SHIFT
    takes = (second > first) | ((second == first) & (other < one))
    takes = (takes & (other != 0)) | (one == 0)
    return np.where(takes, other, one).astype(np.uint32, copy=False)


def free_rarest(cells: Cells, most: int) -> None:
    """Empty cells until at most `most` are in use: the least confirmed, of those the last."""
    surplus = int(np.count_nonzero(cells)) - most
    for level in range(4):
        if surplus <= 0:
            return
        at = np.flatnonzero((cells != 0) & (cells >> CONFIDENCE_SHIFT == level))[-surplus:]
        cells[at] = 0
        surplus -= len(at)
