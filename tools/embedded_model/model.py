"""The embedded model in plain torch: a tiny llama whose state dict uses GGUF tensor names."""

from __future__ import annotations

from dataclasses import dataclass

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
    layers: int = 8
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


def attention(query: Tensor, key: Tensor, value: Tensor, rows: int = 128) -> Tensor:
    """Attend causally, in chunks of query rows: on a CPU faster than the fused kernel."""
    query, length = query * query.shape[-1] ** -0.5, query.shape[2]
    mixed = []
    for start in range(0, length, rows):
        end = min(start + rows, length)
        scores = query[:, :, start:end] @ key[:, :, :end].transpose(-1, -2)
        future = torch.full((end - start, end), -1e4, dtype=scores.dtype, device=scores.device)
        weights = torch.softmax(scores + future.triu(start + 1), dim=-1)
        mixed.append(weights.to(value.dtype) @ value[:, :, :end])
    return torch.cat(mixed, dim=2)


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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Run the layer on [batch, length, width]; attention is causal."""
        inner = self.attn_norm(x)
        query = rotate(self._heads(self.attn_q(inner)), cos, sin)
        key = rotate(self._heads(self.attn_k(inner)), cos, sin)
        value = self._heads(self.attn_v(inner))
        groups = self.config.heads // self.config.kv_heads
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
        mixed = attention(query, key, value.to(query.dtype))
        x = x + self.attn_output(mixed.transpose(1, 2).flatten(2))
        inner = self.ffn_norm(x)
        gated: Tensor = F.silu(self.ffn_gate(inner)) * self.ffn_up(inner)
        down: Tensor = self.ffn_down(gated)
        return x + down


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

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the last normalised states of [batch, length] token ids."""
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, self.cos[:length], self.sin[:length])
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
