"""Vectors in the length and the form that a client asks for."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ngramspec.arrays import Vectors
from ngramspec.server.errors import bad_request

EUCLIDEAN = 2
_NORMS = (-1, 100)  # llama-server's embd_normalize, of which all above 2 are p-norms


def normalized(vectors: Vectors, kind: int) -> Vectors:
    """Return vectors of length 1.

    Args:
        vectors: Shape (n, size).
        kind: -1 = as they are, 0 = largest number 32760, else the p-norm.
    """
    if kind == -1:
        return vectors
    wide = np.abs(vectors.astype(np.float64))
    if kind == 0:
        lengths = wide.max(axis=1, keepdims=True) / 32760.0
    else:
        largest = wide.max(axis=1, keepdims=True)  # so that no power is too large
        scaled = np.divide(wide, largest, out=np.zeros_like(wide), where=largest > 0)
        lengths = largest * (scaled**kind).sum(axis=1, keepdims=True) ** (1 / kind)
    normed = np.divide(vectors, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return np.asarray(normed, dtype=np.float32)


def check_norm(kind: int) -> int:
    """Return the kind of length.

    Raises:
        ApiError: There is no such kind.
    """
    low, high = _NORMS
    if not low <= kind <= high:
        raise bad_request(f"embd_normalize must be in {low}..{high}, got {kind}", "embd_normalize")
    return kind


def check_dimensions(dimensions: int | None, size: int) -> int:
    """Return how many numbers of a vector are kept.

    Raises:
        ApiError: There are fewer.
    """
    if dimensions is None:
        return size
    if not 1 <= dimensions <= size:
        raise bad_request(f"dimensions must be in 1..{size}, got {dimensions}", "dimensions")
    return dimensions


def plain(vector: Vectors) -> list[Any]:
    """Return numbers for JSON; what is not finite becomes 0, as in no direction."""
    return np.nan_to_num(vector, nan=0.0, posinf=0.0, neginf=0.0).tolist()  # type: ignore[no-any-return]


def in_base64(vector: Vectors) -> str:
    """Return a vector as OpenAI's base64 of 32-bit floats."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
