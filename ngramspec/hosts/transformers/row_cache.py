"""RowStore: keys and values of one layer, written for each row of a batch at its own place.

The caches of transformers put new tokens of all rows at the same index, so rows that accepted
different numbers of drafted tokens would need holes or a copy. Here a rejected token is simply
overwritten by the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

GROWTH = 1.5


class Places:
    """Where the tokens of a pass go, for all layers.

    Attributes:
        columns: int64 tensor (rows, queries), None while the prompts are computed: then they
            follow one another from index 0.
        end: One more than the largest index in use after the pass.
    """

    def __init__(self) -> None:
        self.columns: Any = None
        self.rows: Any = None  # int64 tensor (rows, 1)
        self.end = 0


class RowStore:
    """One layer's buffers of shape (rows, heads, capacity, width), growing unless fixed.

    A mixin: make_layers adds the base class that transformers requires of a cache layer.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, places: Places, capacity: int, fixed: bool) -> None:
        self.keys: Any = None
        self.values: Any = None
        self.is_initialized = False
        self._places, self._capacity, self._fixed = places, capacity, fixed
        self._length = 0

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Allocate the buffers for states like these."""
        self.keys = _buffer(key_states, self._capacity)
        self.values = _buffer(value_states, self._capacity)
        self.is_initialized = True

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Store a pass and return views of all that is stored. O(pass), unless buffers grow."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        places, queries = self._places, key_states.shape[2]
        end = self._length + queries if places.columns is None else places.end
        self._reserve(end)
        if places.columns is None:
            self.keys[:, :, self._length : end] = key_states
            self.values[:, :, self._length : end] = value_states
        else:
            rows, columns = self._here(places.rows, places.columns)
            self.keys[rows, :, columns] = key_states.transpose(1, 2)
            self.values[rows, :, columns] = value_states.transpose(1, 2)
        self._length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Any) -> None:
        """Keep some rows only: a copy."""
        (rows,) = self._here(rows)
        self.keys, self.values = self.keys[rows], self.values[rows]

    def move(self, rows: Any, sources: Any, targets: Any) -> None:
        """Copy tokens to other places, int64 tensors (n,); those at the sources stay."""
        rows, sources, targets = self._here(rows, sources, targets)
        for states in (self.keys, self.values):
            states[rows, :, targets] = states[rows, :, sources]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys a pass sees and the index of the first."""
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens in the longest row."""
        return self._length

    def get_max_length(self) -> int:
        """Return the capacity, -1 for none."""
        return self._capacity if self._fixed else -1

    def _here(self, *places: Any) -> Iterator[Any]:
        """Return places on the layer's device, which may be another than the model's first."""
        return (place.to(self.keys.device) for place in places)

    def _reserve(self, end: int) -> None:
        if end > self._capacity:
            self._capacity = max(end, int(self._capacity * GROWTH))
            for name in ("keys", "values"):
                old = getattr(self, name)
                new = _buffer(old, self._capacity)
                new[:, :, : self._length] = old[:, :, : self._length]
                setattr(self, name, new)


def make_layers(cache: Any, places: Places, capacity: int, fixed: bool) -> None:
    """Replace the layers of a cache that holds nothing yet by RowStores.

    Layers that store nothing, because they use another layer's, stay.
    """
    from transformers.cache_utils import CacheLayerMixin, DummyLayer

    kind: Any = type("RowLayer", (RowStore, CacheLayerMixin), {})
    cache.layers = [
        layer if isinstance(layer, DummyLayer) else kind(places, capacity, fixed)
        for layer in cache.layers
    ]


def _buffer(states: Any, capacity: int) -> Any:
    rows, heads, _, width = states.shape
    # Zeros: what is not written yet is masked, but 0 times NaN would not be 0.
    return states.new_zeros((rows, heads, capacity, width))
