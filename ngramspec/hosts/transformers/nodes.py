"""What a pass is made of: Texts, the ids of a batch so far, and Nodes, the drafts after them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.verify.tree import ancestor_mask, positions

Bools = npt.NDArray[np.bool_]


class Nodes:
    """Node 0 of a row is its newest token, node 1 + i the token i of its draft.

    Args:
        newest: int (rows,).
        tokens: int (rows, width), drafts; anything after their ends.
        parents: int (rows, width), for each token the index of the one before it, an earlier one,
            or -1 = the newest token; anything after a draft's end.
        lengths: int (rows,), tokens of drafts.

    Attributes:
        ids: int64 (rows, 1 + width), 0 after a row's end.
        parents, lengths: As given, with -1 after a draft's end.
        depths: int64 (rows, 1 + width), how many tokens after the newest one; 0 after a row's end.
        branched: Whether any draft is not a chain.
    """

    def __init__(self, newest: Any, tokens: Any, parents: Any, lengths: Any) -> None:
        rows, width = tokens.shape
        there = np.arange(width) < lengths[:, None]
        self.ids = np.zeros((rows, 1 + width), dtype=np.int64)
        self.ids[:, 0] = newest
        self.ids[:, 1:][there] = tokens[there]
        self.parents = np.where(there, parents, -1)
        self.lengths = lengths
        self._forked = (there & (parents != np.arange(-1, width - 1))).any(axis=1)
        self.branched = bool(self._forked.any())
        self.depths = np.zeros((rows, 1 + width), dtype=np.int64)
        self.depths[:, 1:] = np.where(there, np.arange(1, 1 + width), 0)
        for row in np.flatnonzero(self._forked):
            count = int(lengths[row])
            self.depths[row, 1 : 1 + count] = positions(self.parents[row, :count]) + 1

    def seen(self) -> Bools:
        """Return which nodes each node sees, itself and those before it: (rows, nodes, nodes)."""
        rows, count = self.ids.shape
        mask = np.tile(np.tri(count, dtype=np.bool_), (rows, 1, 1))
        for row in np.flatnonzero(self._forked):
            end = 1 + int(self.lengths[row])
            mask[row] = np.eye(count, dtype=np.bool_)
            mask[row, :end, :end] = ancestor_mask(np.append(-1, self.parents[row, : end - 1] + 1))
        return mask

    def path(self, row: int, node: int) -> list[int]:
        """Return the nodes from the one after the newest token down to a node."""
        if not self._forked[row]:
            return list(range(1, 1 + node))
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[row, node - 1]) + 1
        return path[::-1]

    def after(self, row: int, node: int) -> list[int]:
        """Return the nodes that come right after a node."""
        count = int(self.lengths[row])
        if not self._forked[row]:
            return [node + 1] if node < count else []
        nodes: list[int] = (np.flatnonzero(self.parents[row, :count] + 1 == node) + 1).tolist()
        return nodes

    def leaf(self, row: int, node: int) -> int:
        """Return where the first nodes that follow a node lead to."""
        for later in range(node, int(self.lengths[row])):
            if self.parents[row, later] + 1 == node:
                node = later + 1
        return node


def misplaced(counts: npt.NDArray[np.int64], paths: npt.NDArray[np.int32]) -> tuple[Any, Any, Any]:
    """Return the kept nodes of a pass that are not where the text has them: none in a chain.

    Args:
        counts: (rows,), tokens that rows have taken: the newest one, then a path.
        paths: (rows, width), paths as verify_tree gives them.

    Returns:
        Rows, nodes and the places in the pass where they belong, int64 (n,) each.
    """
    index = np.arange(paths.shape[1])
    rows, at = np.nonzero((index < counts[:, None] - 1) & (paths != index))
    return rows, paths[rows, at].astype(np.int64) + 1, at + 1


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
