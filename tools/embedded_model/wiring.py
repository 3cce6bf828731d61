"""Weights to begin with that copy already: heads that look back, and heads that find a match.

From random weights a model finds out late that a token seen before says what comes next: its first
layers must agree on how to do it. Written by hand, these two layers repeat nine of ten tokens of a
text before any training, and training begins with what is left: where a copy begins and ends, and
what is different in it. Everything stays trainable.

The residual has parts at the beginning: the token itself, and the tokens one, two and three places
before it.

Source: induction heads, Olsson et al., arXiv 2209.11895.
"""

from __future__ import annotations

import math

import torch
from model import ModelConfig, TinyLlama
from torch import Tensor, nn

CONTENT = 128  # numbers of the residual for the token
EARLIER = 40  # for each token before it
PLACES = {back: CONTENT + EARLIER * (back - 1) for back in (1, 2, 3)}  # where they begin
SPREAD = 0.06  # of the embeddings
CONSTANT = 6 * SPREAD  # the residual's last number, the same for every token
LOOK_BACK, MATCH = 10.0, 10.0  # scores of the right place before the softmax
COPY = 1.5  # weight of the token that is copied, for each head


def _heads(matrix: nn.Linear, width: int, axis: int = 0) -> list[Tensor]:
    """Return each head's rows of a matrix, or its columns."""
    return list(matrix.weight.split(width, axis))


def _orthonormal(rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(torch.randn(columns, rows))[0].T


def _turns(config: ModelConfig) -> list[float]:
    """Return by how much each pair of numbers of a head turns from place to place, in radians."""
    steps = torch.arange(0, config.head_width, 2).double() / config.head_width
    turns: list[float] = (config.rope_base**-steps).tolist()
    return turns


@torch.no_grad()
def wired(model: TinyLlama) -> TinyLlama:
    """Write the first two layers of a fresh model and its embeddings; return it."""
    table = model.token_embd.weight
    table[:, CONTENT:].mul_(0.1)
    table[:, :CONTENT].normal_(std=SPREAD)
    table[:, -1] = CONSTANT
    seen = _orthonormal(EARLIER, CONTENT)  # what is kept of an earlier token
    _look_back(model, seen)
    _match(model, seen)
    return model


def _look_back(model: TinyLlama, seen: Tensor) -> None:
    """Let heads of the first layer write the tokens before into the residual.

    Queries and keys are of the constant only: what counts is by how far places are turned.
    """
    config, block = model.config, model.blk[0]
    width, group = config.head_width, config.heads // config.kv_heads
    for weight in block.parameters():
        if weight.ndim == 2:
            weight.mul_(0.3)
    turns = _turns(config)
    fast = [pair for pair, turn in enumerate(turns) if turn > 0.1][:5]
    norm = math.sqrt((CONTENT * SPREAD**2 + CONSTANT**2) / config.width)
    scale = math.sqrt(LOOK_BACK * math.sqrt(width)) / (CONSTANT / norm)
    queries, keys = _heads(block.attn_q, width), _heads(block.attn_k, width)
    values, outputs = _heads(block.attn_v, width), _heads(block.attn_output, width, 1)
    for head, (back, start) in enumerate(PLACES.items()):
        query, key, value = queries[head], keys[head // group], values[head // group]
        for matrix in (query, key):
            matrix.zero_()
        value[:EARLIER].zero_()
        value[:EARLIER, :CONTENT] = seen
        for pair in fast:
            key[2 * pair, -1] = scale
            query[2 * pair, -1] = scale * math.cos(turns[pair] * back)
            query[2 * pair + 1, -1] = -scale * math.sin(turns[pair] * back)
        outputs[head][:, :EARLIER] = 0
        outputs[head][start : start + EARLIER, :EARLIER] = torch.eye(EARLIER) * 1.2 * SPREAD


def _match(model: TinyLlama, seen: Tensor) -> None:
    """Let heads of the second layer find where the last tokens stood before, and copy what came.

    A token is compared with the one before each place, the token before it with the one two before,
    and so on, in those numbers of a head that hardly turn.
    """
    config, block = model.config, model.blk[1]
    width, group = config.head_width, config.heads // config.kv_heads
    still = [pair for pair, turn in enumerate(_turns(config)) if turn * 1500 < 1.0]
    numbers = [number for pair in still for number in (2 * pair, 2 * pair + 1)]
    size = len(numbers) // len(PLACES)
    parts = [numbers[size * i : size * (i + 1)] for i in range(len(PLACES))]
    places = [slice(start, start + EARLIER) for start in PLACES.values()]
    scale = math.sqrt(MATCH * math.sqrt(width) / (size * 1.15**2))
    queries, keys = _heads(block.attn_q, width), _heads(block.attn_k, width)
    values, outputs = _heads(block.attn_v, width), _heads(block.attn_output, width, 1)
    for shared in range(config.kv_heads):
        start = width * (shared % (CONTENT // width))
        values[shared].zero_()
        values[shared][:, start : start + width] = torch.eye(width)
        keys[shared].zero_()
        mixes = [_orthonormal(size, EARLIER) for _ in parts]
        for part, place, mix in zip(parts, places, mixes, strict=True):
            keys[shared][part, place] = mix * scale
        for own in range(group):
            head = shared * group + own
            first, second, third = (1.0, 0.6, 0.4) if own == 0 else (1.0, 1.0, 1.0)
            queries[head].zero_()
            queries[head][parts[0], :CONTENT] = mixes[0] @ seen * scale * 1.5 * first
            queries[head][parts[1], places[0]] = mixes[1] * scale * second
            queries[head][parts[2], places[1]] = mixes[2] * scale * third
            outputs[head].mul_(0.3)
            outputs[head][start : start + width] += torch.eye(width) * COPY * SPREAD
