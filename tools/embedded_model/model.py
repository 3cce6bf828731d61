"""The embedded model in plain torch: a tiny llama whose state dict uses GGUF tensor names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model from scratch.

    rope_base: So large that two thirds of a head's numbers turn by less than a radian over the
        whole context: there a head compares tokens, whatever lies between them.
    """

    vocab: int = 4096
    layers: int = 9
    width: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_width: int = 64
    feed_forward: int = 384
    context: int = 2048
    rope_base: float = 1e10
    norm_eps: float = 1e-5


class RmsNorm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, width: int, eps: float) -> None:
        """Create a norm over the last axis of size `width`."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return cosine and sine tables of shape [context, head width / 2]."""
    half = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
    angle = torch.outer(torch.arange(config.context).double(), config.rope_base**-half)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply interleaved rotary positions to `x` of shape [batch, heads, length, head width]."""
    pairs = x.float().view(*x.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


class Attention(torch.autograd.Function):
    """Causal attention in chunks of query rows, with the gradient by hand.

    On a CPU faster than the fused kernel, and than what autograd makes of the same loop: heads that
    share a key are one product, and each chunk adds to its part of the gradients alone.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: int) -> Tensor:
        """Mix values for queries [batch, heads, length, width]; keys have fewer heads."""
        batch, heads, length, width = query.shape
        shared = batch * key.shape[1]
        query = query.reshape(shared, -1, length, width)
        key, value = (tensor.reshape(shared, length, width) for tensor in (key, value))
        mixed, saved = torch.empty_like(query), []
        for start in range(0, length, rows):
            end = min(start + rows, length)
            asked = query[:, :, start:end].flatten(1, 2)
            future = torch.full((end - start, end), -1e4, dtype=query.dtype, device=query.device)
            mask = future.triu(start + 1).repeat(query.shape[1], 1)
            keys = key[:, :end].transpose(1, 2)
            weights = torch.baddbmm(mask, asked, keys, alpha=width**-0.5).softmax(-1)
            mixed[:, :, start:end] = (weights @ value[:, :end]).unflatten(1, (-1, end - start))
            saved.append(weights)
        ctx.save_for_backward(query, key, value, *saved)
        ctx.rows, ctx.shapes = rows, ((batch, heads, length, width), (batch, -1, length, width))
        return mixed.view(ctx.shapes[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of queries, keys and values."""
        query, key, value, *saved = ctx.saved_tensors
        length, scale = query.shape[2], query.shape[3] ** -0.5
        gradient = gradient.reshape(query.shape)
        to_query = torch.empty_like(query)
        to_key, to_value = torch.zeros_like(key), torch.zeros_like(value)
        for start, weights in zip(range(0, length, ctx.rows), saved, strict=True):
            end = min(start + ctx.rows, length)
            asked, incoming = (x[:, :, start:end].flatten(1, 2) for x in (query, gradient))
            to_value[:, :end].baddbmm_(weights.transpose(1, 2), incoming)
            slope = torch.ops.aten._softmax_backward_data(
                incoming @ value[:, :end].transpose(1, 2), weights, -1, weights.dtype
            )
            to_query[:, :, start:end] = (slope @ key[:, :end]).unflatten(1, (-1, end - start))
            to_key[:, :end].baddbmm_(slope.transpose(1, 2), asked, alpha=scale)
        whole, fewer = ctx.shapes
        return to_query.mul_(scale).view(whole), to_key.view(fewer), to_value.view(fewer), None


@torch.compiler.disable
def attention(query: Tensor, key: Tensor, value: Tensor, rows: int = 128) -> Tensor:
    """Attend causally: queries [batch, heads, length, width], keys and values with fewer heads."""
    mixed: Tensor = Attention.apply(query, key, value, rows)
    return mixed


class Block(nn.Module):
    """One transformer layer: grouped attention and a gated feed-forward part."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the layer's norms and matrices under their GGUF names."""
        super().__init__()
        self.config = config
        q_width, kv_width = (n * config.head_width for n in (config.heads, config.kv_heads))
        self.attn_norm = RmsNorm(config.width, config.norm_eps)
        self.attn_q = nn.Linear(config.width, q_width, bias=False)
        self.attn_k = nn.Linear(config.width, kv_width, bias=False)
        self.attn_v = nn.Linear(config.width, kv_width, bias=False)
        self.attn_output = nn.Linear(q_width, config.width, bias=False)
        self.ffn_norm = RmsNorm(config.width, config.norm_eps)
        self.ffn_gate = nn.Linear(config.width, config.feed_forward, bias=False)
        self.ffn_up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.ffn_down = nn.Linear(config.feed_forward, config.width, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.head_width).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the layer on [batch, length, width]; attention is causal.

        Returns the states, and the queries and keys that were compared.
        """
        inner = self.attn_norm(x)
        query = rotate(self._heads(self.attn_q(inner)), cos, sin)
        key = rotate(self._heads(self.attn_k(inner)), cos, sin)
        mixed = attention(query, key, self._heads(self.attn_v(inner)).to(query.dtype))
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(2))
        inner = self.ffn_norm(x)
        gated: Tensor = F.silu(self.ffn_gate(inner)) * self.ffn_up(inner)
        down: Tensor = self.ffn_down(gated)
        return x + down, query, key


class TinyLlama(nn.Module):
    """The whole model; the output matrix is the embedding matrix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig | None = None) -> None:
        """Create the model with small random matrices."""
        super().__init__()
        self.config = config or ModelConfig()
        self.token_embd = nn.Embedding(self.config.vocab, self.config.width)
        self.blk = nn.ModuleList(Block(self.config) for _ in range(self.config.layers))
        self.output_norm = RmsNorm(self.config.width, self.config.norm_eps)
        cos, sin = rope_table(self.config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)

    def hidden(self, tokens: Tensor, compared: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Return the last normalised states of [batch, length] token ids.

        compared: Takes each layer's queries and keys, if wanted.
        """
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        for block in self.blk:
            x, query, key = block(x, self.cos[:length], self.sin[:length])
            if compared is not None:
                compared.append((query, key))
        normed: Tensor = self.output_norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary for normalised states."""
        return F.linear(hidden, self.token_embd.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape [batch, length, vocabulary]."""
        return self.logits(self.hidden(tokens))


def load_gguf(path: str) -> TinyLlama:
    """Dequantise a GGUF file of this architecture into a torch model."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)

    def number(key: str) -> int:
        return int(reader.fields[f"llama.{key}"].contents())

    width, heads = number("embedding_length"), number("attention.head_count")
    wide = "llama.attention.key_length" in reader.fields

    config = ModelConfig(
        vocab=number("vocab_size"),
        layers=number("block_count"),
        width=width,
        heads=heads,
        kv_heads=number("attention.head_count_kv"),
        head_width=number("attention.key_length") if wide else width // heads,
        feed_forward=number("feed_forward_length"),
        context=number("context_length"),
        rope_base=float(reader.fields["llama.rope.freq_base"].contents()),
    )
    model = TinyLlama(config)
    state = {
        item.name: torch.from_numpy(dequantize(item.data, item.tensor_type).copy())
        for item in reader.tensors
    }
    model.load_state_dict(state)
    return model
