"""Passes over the model: for one row, whose cache is cut, or for many rows at their own places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.adapters.transformers.checks import STATIC, check_batch
from ngramspec.adapters.transformers.row_cache import Places, RowStore, make_layers

FIRST_ROOM = 256  # initial room after the prompts in a growing buffer, in tokens


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
        self.cache = kwargs["past_key_values"]

    def prefill(self) -> Any:
        """Compute the prompts and return logits of their last tokens, (rows, 1, vocab_size)."""
        outputs = self._model._prefill(self._input_ids, self._config, self._kwargs)
        return self._logits(outputs, 1)

    def _forward(self, token_ids: Any, mask: Any, positions: Any) -> Any:
        kwargs = {**self._kwargs, "attention_mask": mask, "position_ids": positions}
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = token_ids.shape[1]
        inputs = self._model.prepare_inputs_for_generation(
            token_ids, is_first_iteration=False, **kwargs
        )
        outputs = self._model(**inputs, return_dict=True)
        return self._logits(outputs, token_ids.shape[1])

    def _logits(self, outputs: Any, queries: int) -> Any:
        import torch

        # A copy: processors write into it.
        kept = outputs.logits[:, -queries:]
        return kept.to(copy=True, dtype=torch.float32, device=self._input_ids.device)


class CutPass(Pass):
    """One row on the cache of generate(): rejected tokens are cut off its end."""

    def __init__(self, model: Any, input_ids: Any, config: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(model, input_ids, config, kwargs)
        self._mask: Any = kwargs.get("attention_mask")
        self._next: Any = kwargs.get("position_ids")
        self._seen = 0

    def prefill(self) -> Any:
        """Compute the prompt, then let the cache keep what a cut may bring back."""
        import torch.nn.functional

        logits = super().prefill()
        self.cache.activate_past_recording()
        if self._next is not None:
            self._next = self._next[..., -1:] + 1
        if self._mask is not None:
            self._seen = self._mask.shape[1]
            room = self._config.max_length
            self._mask = torch.nn.functional.pad(self._mask, (0, room), value=1)
        return logits

    def run(self, token_ids: Any) -> Any:
        """Return logits after each token, float32 (1, queries, vocab_size)."""
        import torch

        queries = token_ids.shape[1]
        mask, positions = self._mask, self._next
        if mask is not None:
            mask = mask[:, : self._seen + queries]
        if positions is not None:
            positions = positions + torch.arange(queries, device=positions.device)
        return self._forward(token_ids, mask, positions)

    def keep(self, counts: npt.NDArray[np.int64], queries: int) -> None:
        """Keep the first `counts` tokens of each row of the pass. O(layers)."""
        kept = int(counts[0])
        if self._next is not None:
            self._next = self._next + kept
        self._seen += kept
        rejected = queries - kept
        for layer in self.cache.layers:
            if type(layer).__name__ not in STATIC:
                layer.crop(-rejected)
            elif rejected:
                layer.cumulative_length.sub_(rejected)
                if hasattr(layer, "cumulative_length_int"):
                    layer.cumulative_length_int -= rejected

    def close(self) -> None:
        """Leave the cache as generate() would."""
        for layer in self.cache.layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False


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
        """Compute the prompts."""
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

    def run(self, token_ids: Any) -> Any:
        """Return logits after each token, float32 (rows, queries, vocab_size), 0 for ended rows."""
        import torch

        queries = token_ids.shape[1]
        starts = torch.from_numpy(self._starts[self._held]).to(self._model.device)
        columns = starts[:, None] + torch.arange(queries, device=starts.device)
        self._places.columns = columns
        self._places.end = int(self._starts[self._held].max()) + queries
        held = torch.from_numpy(self._held).to(token_ids.device)
        all_held = len(held) == len(token_ids)
        ids = token_ids if all_held else token_ids[held]
        logits = self._forward(ids, self._masks(columns), columns + self._offsets)
        if all_held:
            return logits
        return logits.new_zeros((len(token_ids), *logits.shape[1:])).index_copy_(0, held, logits)

    def keep(self, counts: npt.NDArray[np.int64], queries: int) -> None:
        """Keep each row's first tokens of the pass. O(rows): the next pass overwrites the rest."""
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

    def _drop(self, kept: npt.NDArray[np.int64]) -> None:
        """Hold only some of the rows."""
        import torch

        index = torch.from_numpy(kept).to(self._model.device)
        self._held = self._held[kept]
        self._offsets = self._offsets[index]
        self._places.rows = self._places.rows[: len(kept)]
        if self._prompt is not None:
            self._prompt = self._prompt[index]
        for layer in self.cache.layers:
            if isinstance(layer, RowStore):
                layer.select(index)

    def close(self) -> None:
        """Leave nothing in the cache: its rows are of unequal length."""
        self.cache.layers = []

    def _masks(self, columns: Any) -> Any:
        """Return the mask, or one per kind of layer where the model has several."""
        text = self._model.config.get_text_config()
        window = getattr(text, "sliding_window", None)
        kinds: Sequence[str] = sorted(set(getattr(text, "layer_types", None) or ()))
        if not kinds:
            return self._mask(columns, window)
        wide = {"full_attention": None, "sliding_attention": window}
        return {kind: self._mask(columns, wide[kind]) for kind in kinds}

    def _mask(self, columns: Any, window: int | None) -> Any:
        """Return which keys each query sees, (rows, 1, queries, keys)."""
        import torch

        keys = torch.arange(self._places.end, device=columns.device)
        seen = keys <= columns[..., None]
        if window is not None:
            seen &= keys > columns[..., None] - window
        if self._prompt is not None:
            seen[..., : self._prompt.shape[1]] &= self._prompt[:, None, : self._places.end]
        if self._model.config.get_text_config()._attn_implementation == "sdpa":
            return seen[:, None]
        kind = self._model.dtype
        hidden = torch.full((), torch.finfo(kind).min, dtype=kind, device=seen.device)
        return torch.where(seen, torch.zeros_like(hidden), hidden)[:, None]
