"""Texts: the ids of a batch, on the host and, if something reads them there, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Texts:
    """Prompts and what was emitted since, row by row.

    Args:
        input_ids: The prompts, int64 tensor (rows, prompt_len).
        room: Tokens that a row may emit.
        pad: Id after a row's end.
        watched: Keep `ids` up to date at every token, for processors and stopping criteria.

    Attributes:
        ids: int64 tensor (rows, prompt_len + room) on the device of input_ids.
        lengths: int64 (rows,), tokens emitted.
    """

    def __init__(self, input_ids: Any, room: int, pad: int, watched: bool) -> None:
        rows, self.prompt_len = input_ids.shape
        self.ids = input_ids.new_full((rows, self.prompt_len + room), pad)
        self.ids[:, : self.prompt_len] = input_ids
        self._shared = input_ids.device.type == "cpu"
        self._host = self.ids.numpy() if self._shared else self.ids.cpu().numpy()
        self._watched = watched
        self._pad = pad
        self.lengths = np.zeros(rows, dtype=np.int64)

    def write(self, row: int, start: int, token_ids: npt.NDArray[np.integer[Any]]) -> None:
        """Write tokens after the first `start` that a row emitted; its length stays."""
        place = slice(self.prompt_len + start, self.prompt_len + start + len(token_ids))
        self._host[row, place] = token_ids
        if self._watched and not self._shared:
            self._to_device(row, place)

    def close(self, row: int) -> None:
        place = slice(self.prompt_len + int(self.lengths[row]), None)
        self._host[row, place] = self._pad
        if self._watched and not self._shared:
            self._to_device(row, place)

    def seen(self, length: int) -> Any:
        """Return all rows up to `length` emitted tokens, a view."""
        return self.ids[:, : self.prompt_len + length]

    def columns(self, start: int, end: int) -> Any:
        """Return emitted tokens start..end - 1 of all rows, int64 tensor on the host."""
        import torch

        first = self.prompt_len + start
        return torch.from_numpy(self._host[:, first : self.prompt_len + end].copy())

    def result(self) -> Any:
        """Return prompts and emitted tokens, as long as the longest row: a new tensor."""
        import torch

        end = self.prompt_len + int(self.lengths.max(initial=0))
        return torch.from_numpy(self._host[:, :end].copy()).to(self.ids.device)

    def _to_device(self, row: int, place: slice) -> None:
        import torch

        self.ids[row, place] = torch.from_numpy(self._host[row, place]).to(self.ids.device)
