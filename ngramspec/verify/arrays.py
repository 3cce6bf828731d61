"""Arrays: numpy, or torch on one device, behind one interface where the two differ.

Functions that both have under one name are called through `lib`; torch takes numpy's `axis` and
`keepdims`. torch is never imported: a caller that passes a tensor has loaded it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ngramspec.errors import InputError

Array = Any  # numpy.ndarray or torch.Tensor


def is_tensor(values: Any) -> bool:
    """Return whether values are a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


class Arrays:
    """Arrays(like): the library and device of `like`, numpy for anything but a tensor."""

    def __init__(self, like: Any) -> None:
        self.lib: Any = sys.modules["torch"] if is_tensor(like) else np
        self._place: dict[str, Any] = {"device": like.device} if is_tensor(like) else {}

    def floats(self, values: Any, name: str, shape: tuple[str, ...]) -> Array:
        """Return values here, in their own dtype; InputError unless floats of that many axes."""
        array = _checked(values, name, shape, "floats")
        return self.put(array)

    def ints(self, values: Any, name: str, shape: tuple[str, ...]) -> Array:
        """Return values here, as int64; InputError unless whole numbers of that many axes."""
        array = _checked(values, name, shape, "whole numbers")
        # Before they move: torch lacks some of numpy's integer types.
        return self.put(array.long() if is_tensor(array) else array.astype(np.int64))

    def put(self, array: Array) -> Array:
        """Return an array or tensor as one of this library, on this device."""
        if is_tensor(array):
            tensor = array.detach()
            return tensor.cpu().numpy() if self.lib is np else tensor.to(**self._place)
        if self.lib is np:
            return np.asarray(array)
        return self.lib.tensor(np.ascontiguousarray(array), **self._place)

    def range(self, length: int) -> Array:
        """Return 0..length-1 as int64."""
        return self.lib.arange(length, dtype=self.lib.int64, **self._place)

    def uniforms(self, generator: Any, shape: tuple[int, int]) -> Array:
        """Return float64 in [0, 1); InputError unless the generator is of this library."""
        if self.lib is np and isinstance(generator, np.random.Generator):
            return generator.random(shape)
        if self.lib is not np and isinstance(generator, self.lib.Generator):
            kind, place = self.lib.float64, generator.device
            return self.put(self.lib.rand(shape, generator=generator, dtype=kind, device=place))
        kind = "numpy.random.Generator" if self.lib is np else "torch.Generator"
        raise InputError(f"generator must be a {kind} like probs, got {type(generator).__name__}")

    def int32(self, array: Array) -> Array:
        """Return the array as int32, the type of token ids."""
        return array.astype(np.int32) if self.lib is np else array.int()

    def wide(self, array: Array) -> Array:
        """Return the array as float64."""
        return array.astype(np.float64, copy=False) if self.lib is np else array.double()

    def gather(self, array: Array, index: Array) -> Array:
        """Return array[..., index[...]]: one element of the last axis per index."""
        return self.take(array, index[..., None])[..., 0]

    def take(self, array: Array, index: Array) -> Array:
        """Return the elements of the last axis that each row of index names."""
        take = np.take_along_axis if self.lib is np else self.lib.take_along_dim
        return take(array, index, -1)

    def host(self, array: Array) -> Any:
        return array if self.lib is np else array.cpu().numpy()


def as_array(values: Any, name: str) -> Array:
    """Return a tensor as it is and all else as a numpy array; InputError if it has no shape."""
    try:
        return values if is_tensor(values) else np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise InputError(f"{name} must be an array: {error}") from None


def is_float(array: Array) -> bool:
    if is_tensor(array):
        return bool(array.dtype.is_floating_point)
    return np.issubdtype(array.dtype, np.floating)


def _is_whole(array: Array) -> bool:
    if is_tensor(array):
        torch = sys.modules["torch"]
        return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
    # An empty list has no dtype of its own.
    return np.issubdtype(array.dtype, np.integer) or array.size == 0


def _checked(values: Any, name: str, shape: tuple[str, ...], kind: str) -> Array:
    array = as_array(values, name)
    right = is_float(array) if kind == "floats" else _is_whole(array)
    if array.ndim != len(shape) or not right:
        expected = f"({', '.join(shape)}{',' * (len(shape) == 1)})"
        raise InputError(
            f"{name} must be {kind} of shape {expected}, got {array.dtype} of {tuple(array.shape)}"
        )
    return array
