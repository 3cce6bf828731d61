"""A Llama of random weights whose passes are packed: tokens of all rows in one long input.

Rows of a batch have drafts of unequal length. Padding them to the longest would make every matrix
product pay for the padding; packed, only the attention is padded, as in transformers' continuous
batching, vLLM and llama.cpp, and a pass costs by the tokens that it verifies. The model is
transformers' own LlamaForCausalLM; what is ours comes in by its documented hook, an attention
function that keeps keys and values in one preallocated cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from packed_attention import HIDDEN, look

ATTENTION = "ngramspec_packed"
TREE_TOKENS = 62  # of a tree and its root; bit 62 of its masks is never set
Tensor = torch.Tensor


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int

    @property
    def head_size(self) -> int:
        """Return the width of a head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Return the weights of the model."""
        kv_width = self.kv_heads * self.head_size
        layer = self.hidden * (2 * self.hidden + 2 * kv_width + 3 * self.intermediate + 2)
        return self.layers * layer + 2 * self.vocab * self.hidden + self.hidden

    def cache_bytes(self, rows: int, length: int, dtype: torch.dtype) -> int:
        """Return the memory of a Cache."""
        values = self.layers * 2 * (rows + 1) * length * self.kv_heads * self.head_size
        return values * dtype.itemsize


SHAPES = {
    "8b": Shape(32, 4096, 14336, 32, 8, 128_256),  # Llama 3 8B
    "small": Shape(3, 128, 256, 4, 2, 2048),
}


class Cache:
    """Keys and values of all rows, allocated once; one more row takes what padding writes.

    Args:
        shape: The model's.
        rows: Texts that the batch may hold.
        length: Tokens of each.
        device, dtype: The model's.
    """

    def __init__(self, shape: Shape, rows: int, length: int, device: Any, dtype: Any) -> None:
        self.rows, self.length = rows, length
        size = (shape.layers, 2, (rows + 1) * length, shape.kv_heads, shape.head_size)
        self._data = torch.zeros(size, device=device, dtype=dtype)

    @property
    def nbytes(self) -> int:
        """Return its memory."""
        return self._data.nbytes

    def fill_with_noise(self, seed: int = 1) -> None:
        """Let every place hold random numbers: zeros are computed faster than what texts leave."""
        generator = torch.Generator(self._data.device).manual_seed(seed)
        self._data.normal_(generator=generator)

    def write(self, layer: int, where: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store tokens; where: int64, shape (t,), row * length + position."""
        self._data[layer, 0].index_copy_(0, where, keys)
        self._data[layer, 1].index_copy_(0, where, values)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy tokens of all layers to other places; int64, shape (t,), as for write."""
        self._data[:, :, targets] = self._data[:, :, sources]

    def read(self, layer: int, first: int, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Return views of the first `length` tokens of some rows, (count, heads, length, size)."""
        rows = self._data[layer].unflatten(1, (self.rows + 1, self.length))
        seen = rows[:, first : first + count, :length].transpose(2, 3)
        return seen[0], seen[1]


@dataclass
class Packing:
    """Where the t tokens of a packed input belong; q is the longest row, padded to.

    where: int64, (t,), in the cache.
    padded: int64, (count, q), which token of the input each padded query is.
    unpadded: int64, (t,), which padded query each token of the input is.
    mask: (count, 1, group * q, length), 0 where a query may look, else HIDDEN.
    first, count: The rows of the cache.
    length: Tokens of them that are looked at.
    parts: Into how many the tokens that are looked at are divided, see look.
    """

    cache: Cache
    where: Tensor
    padded: Tensor
    unpadded: Tensor
    mask: Tensor
    first: int
    count: int
    length: int
    parts: int = 1


def causal_mask(positions: Tensor, length: int, group: int, dtype: Any) -> Tensor:
    """Return the mask of a packing: a query sees its row up to its own position.

    positions: int64, (count, q). group: query heads per key head, which stand one after another.
    """
    keys = torch.arange(length, device=positions.device)
    return _mask_of(keys > positions[:, :, None], group, dtype)


def tree_mask(starts: Tensor, seen: Tensor, length: int, group: int, dtype: Any) -> Tensor:
    """Return the mask of a packing of trees: a query sees its row's text and its own path.

    starts: int64, (count, q), the place of the row's newest token. seen: int64, (count, q), bit i
    says whether the query sees the i-th token from there on; at most TREE_TOKENS.
    """
    keys = torch.arange(length, device=starts.device) - starts[:, :, None]
    bits = seen[:, :, None] >> keys.clamp(0, TREE_TOKENS) & 1
    return _mask_of((keys >= 0) & (bits == 0), group, dtype)


def _mask_of(hidden: Tensor, group: int, dtype: Any) -> Tensor:
    mask = torch.zeros(hidden.shape, device=hidden.device, dtype=dtype)
    mask = mask.masked_fill_(hidden, HIDDEN)
    count, longest, length = mask.shape
    return mask[:, None].expand(count, group, longest, length).reshape(count, 1, -1, length)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    packing: Packing,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Write the new keys and values, let every row look at its own; for transformers' hook.

    The query heads that share a key head become further queries of it: no key is copied, whatever
    the length of a draft.

    query: (1, heads, t, size); key, value: (1, kv_heads, t, size). Returns (1, t, heads, size).
    """
    p, layer = packing, module.layer_idx
    p.cache.write(layer, p.where, key[0].transpose(0, 1), value[0].transpose(0, 1))
    keys, values = p.cache.read(layer, p.first, p.count, p.length)
    heads, size = query.shape[1], query.shape[3]
    kv_heads, longest = key.shape[1], p.padded.shape[1]
    group = heads // kv_heads
    rows = query[0].transpose(0, 1)[p.padded].view(p.count, longest, kv_heads, group, size)
    asked = rows.permute(0, 2, 3, 1, 4).reshape(p.count, kv_heads, group * longest, size)
    seen = look(asked, keys, values, p.mask, scaling, p.parts)
    seen = seen.view(p.count, kv_heads, group, longest, size).permute(0, 3, 1, 2, 4)
    return seen.reshape(p.count * longest, heads, size)[p.unpadded][None], None


def random_model(shape: Shape, device: Any, dtype: Any, seed: int = 1) -> LlamaForCausalLM:
    """Return a model of random weights, made on the device itself."""
    AttentionInterface.register(ATTENTION, attend)
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=8192,
        attn_implementation=ATTENTION,
    )
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


def forward(model: Any, ids: Tensor, positions: Tensor, packing: Packing, keep: int) -> Tensor:
    """Return the logits of the last `keep` tokens (0 = all) of a packed input, (t, vocab)."""
    output = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=packing.mask,  # of 4 dimensions: taken as it is
        use_cache=False,
        logits_to_keep=keep,
        packing=packing,
    )
    logits: Tensor = output.logits[0]
    return logits
