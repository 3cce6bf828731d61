"""Batches: tokenised samples of similar length, padded, with the loss on the answers only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tasks import Sample, TaskMaker
from tokenizers import Tokenizer
from torch import Tensor

Row = tuple[list[int], list[bool]]
IGNORED = -100
END = 2


@dataclass(frozen=True)
class Batch:
    """Token ids and next-token targets, both [rows, length]; `IGNORED` targets bear no loss."""

    tokens: Tensor
    targets: Tensor


def encode_sample(sample: Sample, tokenizer: Tokenizer) -> Row:
    """Return the ids of a conversation and a mask that is true on the assistant's tokens."""
    ids: list[int] = []
    mask: list[bool] = []

    def extend(text: str, answer: bool) -> None:
        part = tokenizer.encode(text).ids
        ids.extend(part)
        mask.extend([answer] * len(part))

    if sample.system:
        extend(f"<|im_start|>system\n{sample.system}<|im_end|>\n", False)
    for index, (user, assistant) in enumerate(sample.turns):
        head = "\n" if index else ""
        extend(f"{head}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n", False)
        extend(f"{assistant}<|im_end|>", True)
    return ids, mask


def pad_batch(rows: list[Row], multiple: int = 32) -> Batch:
    """Pad rows on the right to a common length and shift the targets by one."""
    length = max(len(ids) for ids, _ in rows) - 1
    length = -(-length // multiple) * multiple
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for row, (ids, mask) in enumerate(rows):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        labels = [i if m else IGNORED for i, m in zip(ids[1:], mask[1:], strict=True)]
        targets[row, : len(ids) - 1] = torch.tensor(labels)
    return Batch(tokens, targets)


class BatchStream:
    """An endless, seeded stream of batches drawn from pools of samples sorted by length."""

    def __init__(
        self,
        maker: TaskMaker,
        tokenizer: Tokenizer,
        budget: int,
        context: int,
        plain: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Keep the sources; `budget` bounds a batch's padded size, `plain` is the share of text."""
        self.maker, self.tokenizer = maker, tokenizer
        self.budget, self.context, self.plain = budget, context, plain
        self.seed, self.pool, self.size = seed, 0, 160

    def _row(self, name: str) -> Row:
        rng = random.Random(f"plain-{name}")
        if rng.random() < self.plain and rng.random() < 0.8:
            texts = rng.sample(self.maker.corpus.prose, 4)
            ids = self.tokenizer.encode("\n\n".join(texts)).ids[: self.context // 3]
            return ids, [True] * len(ids)
        if rng.random() < self.plain / 5:
            functions = rng.sample(self.maker.corpus.functions, 4)
            text = "\n\n\n".join(function.source for function in functions)
            ids = self.tokenizer.encode(text).ids[: self.context // 2]
            return ids, [True] * len(ids)
        return encode_sample(self.maker.make(name), self.tokenizer)

    def _draw(self) -> list[Row]:
        rows = []
        for index in range(self.size):
            ids, mask = self._row(f"train-{self.seed}-{self.pool}-{index}")
            if len(ids) <= self.context:
                rows.append((ids, mask))
        return sorted(rows, key=lambda row: len(row[0]))

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches for ever; `pool` tells where a resumed run goes on."""
        while True:
            batches: list[Batch] = []
            current: list[Row] = []
            for row in self._draw():
                if current and (len(current) + 1) * len(row[0]) > self.budget:
                    batches.append(pad_batch(current))
                    current = []
                current.append(row)
            batches.append(pad_batch(current))
            random.Random(f"{self.seed}-{self.pool}").shuffle(batches)
            self.pool += 1
            yield from batches
