"""Passes over the model: for one row, whose cache is cut, or for many rows at their own places.

And the masks of our own: which keys the queries of a pass see, in the form that a model takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.hosts.transformers.checks import STATIC, cache_name, check_batch
from ngramspec.hosts.transformers.nodes import Nodes, misplaced

FIRST_ROOM = 256  # initial room after the prompts in a growing buffer, in tokens
GROWTH = 1.5


class Pass:
    """What both kinds share: the prompt's pass, and how a pass is run.

    Args:
        model: The model.
        input_ids: Prompts, int64 tensor (rows, prompt_len).
        config: The prepared GenerationConfig.
        kwargs: Model inputs from generate(); kept.
    """

    def __init__(self, model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any]) -> None:
        self._model, self._input_ids, self._config, self._kwargs = model, input_ids, config, kwargs
        self.cache = kwargs[cache_name()]

    @property
    def num_rows(self) -> int:
        """Return how many rows the next pass computes, each with as many tokens as the longest."""
        return int(self._input_ids.shape[0])

    def prefill(self) -> Any:
        """Compute the prompts and return logits of their last tokens, (rows, 1, vocab_size)."""
        outputs = self._model._prefill(self._input_ids, self._config, self._kwargs)
        return self._logits(outputs, 1)

    def _forward(self, token_ids: Any, mask: Any, positions: Any) -> Any:
        kwargs = {**self._kwargs, "attention_mask": mask, "position_ids": positions}
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = token_ids.shape[1]
        if isinstance(mask, dict):  # transformers looks at its dimensions
            kwargs["attention_mask"] = next(iter(mask.values()))
        inputs = self._model.prepare_inputs_for_generation(
            token_ids, is_first_iteration=False, **kwargs
        )
        if isinstance(mask, dict):
            inputs["attention_mask"] = mask
        outputs = self._model(**inputs, return_dict=True)
        return self._logits(outputs, token_ids.shape[1])

    def _logits(self, outputs: Any, queries: int) -> Any:
        import torch

        # A copy: processors write into it.
        logits = outputs.logits[:, -queries:]
        return logits.to(copy=True, dtype=torch.float32, device=self._input_ids.device)


class CutPass(Pass):
    """One row on the cache of generate(): rejected tokens are cut off its end."""

    def __init__(self, model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(model, input_ids, config, kwargs)
        self._mask: Any = kwargs.get("attention_mask")
        self._next: Any = kwargs.get("position_ids")
        self._seen = 0  # tokens in the cache
        self._queries = 0  # of the last pass

    def prefill(self) -> Any:
        """Compute the prompt, then let the cache keep what a cut may bring back."""
        import torch.nn.functional

        logits = super().prefill()
        self.cache.activate_past_recording()
        if self._next is not None:
            self._next = self._next[..., -1:] + 1
        if self._mask is None:
            self._seen = int(self.cache.get_seq_length())
        else:
            self._seen = self._mask.shape[1]
            room = self._config.max_length
            self._mask = torch.nn.functional.pad(self._mask, (0, room), value=1)
        return logits

    def run(self, nodes: Nodes) -> Any:
        """Return logits after each token, float32 (1, queries, vocab_size)."""
        import torch

        self._queries = nodes.ids.shape[1]
        token_ids = torch.from_numpy(nodes.ids).to(self._input_ids.device)
        mask, positions = self._mask, self._next
        if mask is not None:
            mask = mask[:, : self._seen + self._queries]
        if positions is not None:
            positions = positions + torch.from_numpy(nodes.depths).to(positions.device)
        if nodes.branched:
            mask = self._tree_masks(nodes)
        return self._forward(token_ids, mask, positions)

    def keep(self, counts: npt.NDArray[np.int64], paths: npt.NDArray[np.int32]) -> None:
        """Keep the newest token and the path of the pass, `counts` tokens together.

        O(layers), and O(tokens of the path) for a branch that was not the first one.
        """
        count, rejected = int(counts[0]), self._queries - int(counts[0])
        _, nodes, places = misplaced(counts, paths)
        if len(nodes):
            self._move(nodes, places)
        if self._next is not None:
            self._next = self._next + count
        self._seen += count
        for layer in self.cache.layers:
            _cut(layer, rejected)

    def _tree_masks(self, nodes: Nodes) -> Any:
        """Return masks for the keys that each kind of layer hands out."""
        import torch

        starts = torch.tensor([[self._seen]], device=self._next.device)
        prompt = None if self._mask is None else self._mask.bool()
        layers = [layer for layer in self.cache.layers if type(layer).__name__ != "DummyLayer"]

        def seen(window: int | None) -> Any:
            alike = [layer for layer in layers if layer.is_sliding == (window is not None)]
            count, first = (alike or layers)[0].get_mask_sizes(self._queries)
            return seen_keys(nodes, slice(None), starts, (first, count), window, prompt)

        return as_masks(self._model, seen)

    def _move(self, nodes: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> None:
        """Copy the keys and values of nodes to other places of the pass."""
        import torch

        for layer in self.cache.layers:
            if layer.keys is None:
                continue
            static, device = type(layer).__name__ in STATIC, layer.keys.device
            first = self._seen if static else layer.keys.shape[2] - self._queries
            at, to = (torch.from_numpy(first + part).to(device) for part in (nodes, places))
            for states in (layer.keys, layer.values):
                states[:, :, to] = states[:, :, at]

    def close(self) -> None:
        """Leave the cache as generate() would; of a call that broke off, what was verified."""
        for layer in self.cache.layers:
            held = 0 if layer.keys is None else int(layer.get_seq_length())
            if held > self._seen > 0:
                _cut(layer, held - self._seen)
            if hasattr(layer, "record_past"):
                layer.record_past = False


def _cut(layer: Any, count: int) -> None:
    """Remove the last tokens of a cache's layer."""
    if type(layer).__name__ not in STATIC:
        layer.crop(-count)
    elif count:
        layer.cumulative_length.sub_(count)
        if hasattr(layer, "cumulative_length_int"):
            layer.cumulative_length_int -= count


class RowsPass(Pass):
    """Many rows: each has its tokens without gaps at its own places, and a mask for them.

    Raises:
        InputError: The model does not take such a mask.
    """

    def __init__(
        self, model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any], longest_draft: int
    ) -> None:
        check_batch(model, kwargs)
        super().__init__(model, input_ids, config, kwargs)
        self._places = Places()
        from transformers.cache_utils import StaticCache

        fixed = isinstance(self.cache, StaticCache)
        rows, prompt_len = input_ids.shape
        # After a short draft the pass writes padding, which the next pass replaces.
        room = config.max_length - prompt_len + longest_draft
        capacity = prompt_len + (room if fixed else min(room, FIRST_ROOM))
        make_layers(self.cache, self._places, capacity, fixed)
        mask = kwargs.get("attention_mask")
        self._prompt = None if mask is None else mask.bool()
        self._starts = np.full(rows, prompt_len, dtype=np.int64)
        self._held = np.arange(rows)  # rows of the batch that the buffers hold
        self._ended = np.zeros(rows, dtype=bool)

    def prefill(self) -> Any:
        import torch

        logits = super().prefill()
        positions = self._kwargs["position_ids"]
        # Places count padding, positions do not.
        offsets = positions[:, -1:] + 1 - self._input_ids.shape[1]
        self._offsets = offsets.expand(len(self._starts), 1).to(self._model.device).clone()
        self._places.rows = torch.arange(len(self._starts), device=self._model.device)[:, None]
        if self._prompt is not None:
            self._prompt = self._prompt.to(self._model.device)
        return logits

    @property
    def num_rows(self) -> int:
        return len(self._held)

    def run(self, nodes: Nodes) -> Any:
        """Return logits after each token, float32 (rows, queries, vocab_size), 0 for ended rows."""
        import torch

        rows, queries = nodes.ids.shape
        device, held = self._model.device, self._held
        starts = torch.from_numpy(self._starts[held]).to(device)[:, None]
        self._places.columns = starts + torch.arange(queries, device=device)
        self._places.end = end = int(self._starts[held].max()) + queries
        masks = as_masks(
            self._model,
            lambda window: seen_keys(nodes, held, starts, (0, end), window, self._prompt),
        )
        positions = starts + self._offsets + torch.from_numpy(nodes.depths[held]).to(device)
        ids = torch.from_numpy(nodes.ids[held]).to(self._input_ids.device)
        logits = self._forward(ids, masks, positions)
        if len(held) == rows:
            return logits
        index = torch.from_numpy(held).to(logits.device)
        return logits.new_zeros((rows, *logits.shape[1:])).index_copy_(0, index, logits)

    def keep(self, counts: npt.NDArray[np.int64], paths: npt.NDArray[np.int32]) -> None:
        """Keep each row's newest token and path of the pass, `counts` tokens together.

        O(rows): the next pass overwrites the rest. O(tokens of the path) for a branch that was not
        the first one.
        """
        import torch

        rows, nodes, places = misplaced(counts, paths)
        if len(rows):
            starts, device = self._starts[rows], self._model.device
            parts = (np.searchsorted(self._held, rows), starts + nodes, starts + places)
            moves = [torch.from_numpy(part).to(device) for part in parts]
            for layer in self.cache.layers:
                if isinstance(layer, RowStore):
                    layer.move(*moves)
        self._starts += counts

    def release(self, row: int) -> None:
        """Forget a row that has ended.

        It is still computed, at the start of its buffer, until half of the held rows have ended;
        then the others are copied. All copies of a call together cost about one of its cache.
        """
        self._ended[row] = True
        self._starts[row] = 0
        here = self._held == row
        self._offsets[here] = 0
        if self._prompt is not None:
            self._prompt[here] = True  # a query that sees nothing would be NaN
        ended = self._ended[self._held]
        if len(ended) // 2 <= ended.sum() < len(ended) and self._places.columns is not None:
            self._drop(np.flatnonzero(~ended))

    def _drop(self, rows: npt.NDArray[np.int64]) -> None:
        """Hold only some of the rows."""
        import torch

        index = torch.from_numpy(rows).to(self._model.device)
        self._held = self._held[rows]
        self._offsets = self._offsets[index]
        self._places.rows = self._places.rows[: len(rows)]
        if self._prompt is not None:
            self._prompt = self._prompt[index]
        for layer in self.cache.layers:
            if isinstance(layer, RowStore):
                layer.select(index)

    def close(self) -> None:
        """Leave nothing in the cache: its rows are of unequal length."""
        self.cache.layers = []


def seen_keys(
    nodes: Nodes, held: Any, starts: Any, keys: tuple[int, int], window: int | None, prompt: Any
) -> Any:
    """Return which keys each query of a pass sees.

    Args:
        nodes: The tokens of the pass; row by row at the places from `starts` on.
        held: int (rows,), which rows of the nodes are computed.
        starts: int64 tensor (rows, 1): the place of each row's newest token, and so how many keys
            precede it.
        keys: The first place and the number of places that there are keys for.
        window: How many tokens a query sees at most, itself included; None = all.
        prompt: bool tensor (rows, n), False for padding in the first n places, None = none.

    Returns:
        bool tensor (rows, queries, keys).
    """
    import torch

    first, count = keys
    places = torch.arange(first, first + count, device=starts.device)
    columns = starts + torch.arange(nodes.ids.shape[1], device=starts.device)
    positions = columns
    if not nodes.branched:
        seen = places <= columns[..., None]
    else:
        # Siblings share a position; each sees the text, its own path and itself.
        positions = starts + torch.from_numpy(nodes.depths[held]).to(starts.device)
        tree = torch.from_numpy(nodes.seen()[held]).to(starts.device)
        seen = (places < starts)[:, None].repeat(1, columns.shape[1], 1)
        seen.scatter_(2, (columns - first)[:, None].expand(tree.shape), tree)
        places = places.repeat(len(starts), 1).scatter_(1, columns - first, positions)
    if window is not None:
        seen &= places[..., None, :] > positions[..., None] - window
    if prompt is not None:
        there = prompt[:, first : first + count]
        seen[..., : there.shape[1]] &= there[:, None]
    return seen


def as_masks(model: Any, seen: Callable[[int | None], Any]) -> Any:
    """Return the mask for a model, or one per kind of layer where it has several.

    Args:
        model: A model that check_masks lets pass.
        seen: Returns for a window what seen_keys does.
    """
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None)
    kinds: Sequence[str] = sorted(set(getattr(text, "layer_types", None) or ()))
    if not kinds:
        return _as_mask(model, seen(window))
    wide = {"full_attention": None, "sliding_attention": window}
    return {kind: _as_mask(model, seen(wide[kind])) for kind in kinds}


def _as_mask(model: Any, seen: Any) -> Any:
    import torch

    if model.config.get_text_config()._attn_implementation == "sdpa":
        return seen[:, None]
    hidden = torch.full((), torch.finfo(model.dtype).min, dtype=model.dtype, device=seen.device)
    return torch.where(seen, torch.zeros_like(hidden), hidden)[:, None]


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

    The caches of transformers put new tokens of all rows at the same index, so rows that accepted
    different numbers of drafted tokens would need holes or a copy. Here each row is written at its
    own place, and a rejected token is overwritten by the next pass.

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
