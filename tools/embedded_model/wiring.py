"""Weights to begin with that copy already: heads that look back, and heads that find a match.

From random weights a model finds out late that a token seen before says what comes next: its first
layers must agree on how to do it. Written by hand, these three layers repeat nine of ten tokens of
a text before any training, and training begins with what is left: where a copy begins and ends, and
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
SPREAD = 0.06  # of the embeddings
CONSTANT = 6 * SPREAD  # the residual's last number, the same for every token
# How far back heads look, least and most, by layer. A copy goes on where all that was before is the
# same; the last three tokens alone often stand elsewhere, too.
BEFORE: tuple[tuple[tuple[int, int], ...], ...] = (
    ((1, 1),),
    ((2, 2), (3, 3), (4, 4), (5, 5), (6, 9), (10, 17), (18, 33), (34, 65)),
)
KEEPING = ((0, 0), (1, 0), (1, 1))  # layer and head that write the token before, and so on
PLACES = [CONTENT + EARLIER * part for part in range(len(KEEPING))]  # where they write it
TURNING = 4  # pairs of numbers that tell how far away a place is
WIDEST = 2.6  # radians that these may turn within what a head looks at
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
    """Write the first three layers of a fresh model and its embeddings; return it."""
    table = model.token_embd.weight
    table[:, CONTENT:].mul_(0.1)
    table[:, :CONTENT].normal_(std=SPREAD)
    table[:, -1] = CONSTANT
    seen = _orthonormal(EARLIER, CONTENT)  # what is kept of an earlier token
    for layer in range(len(BEFORE)):
        _look_back(model, layer)
        _keep(model, layer, seen)
    _match(model, seen)
    return model


def _look_back(model: TinyLlama, layer: int) -> None:
    """Let heads of a layer look at the places that `BEFORE` says.

    Queries and keys are of the constant only: what counts is by how far places are turned. Pairs of
    numbers that turn far from one end of a span to the other would tell its places apart.
    """
    config, block = model.config, model.blk[layer]
    width, group = config.head_width, config.heads // config.kv_heads
    for weight in block.parameters():
        if weight.ndim == 2:
            weight.mul_(0.3)
    turns = list(enumerate(_turns(config)))
    scale = math.sqrt(LOOK_BACK * math.sqrt(width)) / _constant(model, layer)
    queries, keys = _heads(block.attn_q, width), _heads(block.attn_k, width)
    for head, (least, most) in enumerate(BEFORE[layer]):
        query, key = queries[head], keys[head // group]
        for matrix in (query, key):
            matrix.zero_()
        for pair, _ in turns[: len(turns) // 2]:
            key[2 * pair, -1] = scale
        fit = [(pair, turn) for pair, turn in turns if turn * (most - least + 1) < WIDEST]
        for pair, turn in fit[:TURNING]:
            angle = turn * (least + most) / 2
            query[2 * pair, -1] = scale * math.cos(angle)
            query[2 * pair + 1, -1] = -scale * math.sin(angle)


def _constant(model: TinyLlama, layer: int) -> float:
    """Return what a layer is given as the residual's last number."""
    tokens = torch.randint(model.config.vocab, (1, 256))
    x = model.token_embd(tokens)
    for block in model.blk[:layer]:
        x, _, _ = block(x, model.cos[:256], model.sin[:256])
    return float(model.blk[layer].attn_norm(x)[..., -1].mean())


def _keep(model: TinyLlama, layer: int, seen: Tensor) -> None:
    """Let heads of a layer write the tokens before into the residual."""
    config, block = model.config, model.blk[layer]
    width, group = config.head_width, config.heads // config.kv_heads
    values, outputs = _heads(block.attn_v, width), _heads(block.attn_output, width, 1)
    for (where, head), start in zip(KEEPING, PLACES, strict=True):
        if where == layer:
            value = values[head // group]
            value[:EARLIER].zero_()
            value[:EARLIER, :CONTENT] = seen
            outputs[head][:, :EARLIER] = 0
            outputs[head][start : start + EARLIER, :EARLIER] = torch.eye(EARLIER) * 1.2 * SPREAD


def _match(model: TinyLlama, seen: Tensor) -> None:
    """Let heads of the third layer find where the last tokens stood before, and copy what came.

    A token is compared with the one before each place, the token before it with the one two before,
    and so on, in those numbers of a head that hardly turn.
    """
    config, block = model.config, model.blk[2]
    width, group = config.head_width, config.heads // config.kv_heads
    still = [pair for pair, turn in enumerate(_turns(config)) if turn * 1500 < 1.0]
    numbers = [number for pair in still for number in (2 * pair, 2 * pair + 1)]
    size = len(numbers) // len(PLACES)
    parts = [numbers[size * i : size * (i + 1)] for i in range(len(PLACES))]
    places = [slice(start, start + EARLIER) for start in PLACES]
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
