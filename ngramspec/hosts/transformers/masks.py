"""Masks of our own: which keys the queries of a pass see, in the form that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ngramspec.hosts.transformers.nodes import Nodes


def seen_keys(
    nodes: Nodes,
    held: Any,
    starts: Any,
    keys: tuple[int, int],
    window: int | None,
    prompt: Any,
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
