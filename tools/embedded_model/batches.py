"""Batches: tokenised samples of similar length, padded, with the loss on the answers only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from copies import Piece, Places, find_copies
from tasks import Sample, TaskMaker
from tokenizers import Tokenizer
from torch import Tensor

IGNORED = -100
END = 2


@dataclass(frozen=True)
class Row:
    """A text's token ids.

    wanted: True on the tokens that bear a loss.
    copies: For positions that predict a copied token, the places that it may be copied from.
    """

    ids: list[int]
    wanted: list[bool]
    copies: Places


@dataclass(frozen=True)
class Copies:
    """Copied tokens of one row of a batch.

    positions: The positions that predict them, [copied tokens].
    which, places: Index of a copied token and one place that it may be copied from, both [places].
    """

    positions: Tensor
    which: Tensor
    places: Tensor


@dataclass(frozen=True)
class Batch:
    """Token ids and next-token targets, both [rows, length]; `IGNORED` targets bear no loss."""

    tokens: Tensor
    targets: Tensor
    copies: list[Copies]


def encode_sample(sample: Sample, tokenizer: Tokenizer) -> Row:
    """Return a conversation whose answers are wanted."""
    pieces: list[Piece] = []
    start = 0

    def extend(text: str, answer: bool) -> None:
        nonlocal start
        part = tokenizer.encode(text)
        pieces.append(Piece(text, part.ids, part.offsets, start, answer))
        start += len(part.ids)

    if sample.system:
        extend(f"<|im_start|>system\n{sample.system}<|im_end|>\n", False)
    for index, (user, assistant) in enumerate(sample.turns):
        head = "\n" if index else ""
        extend(f"{head}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n", False)
        extend(f"{assistant}<|im_end|>", True)
    ids = [token for piece in pieces for token in piece.ids]
    wanted = [piece.answer for piece in pieces for _ in piece.ids]
    return Row(ids, wanted, find_copies(pieces))


def pad_batch(rows: list[Row], multiple: int = 32) -> Batch:
    """Pad rows on the right to a common length and shift the targets by one."""
    length = max(len(row.ids) for row in rows) - 1
    length = -(-length // multiple) * multiple
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    copies = []
    for index, row in enumerate(rows):
        ids = torch.tensor(row.ids)
        tokens[index, : len(ids) - 1] = ids[:-1]
        labels = torch.where(torch.tensor(row.wanted), ids, IGNORED)
        targets[index, : len(ids) - 1] = labels[1:]
        found = sorted(row.copies.items())
        flat = [(which, at) for which, (_, places) in enumerate(found) for at in places]
        pairs = torch.tensor(flat, dtype=torch.long).view(-1, 2)
        positions = torch.tensor([position for position, _ in found], dtype=torch.long)
        copies.append(Copies(positions, pairs[:, 0], pairs[:, 1]))
    return Batch(tokens, targets, copies)


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
            return Row(ids, [True] * len(ids), {})
        if rng.random() < self.plain / 5:
            functions = rng.sample(self.maker.corpus.functions, 4)
            text = "\n\n\n".join(function.source for function in functions)
            ids = self.tokenizer.encode(text).ids[: self.context // 2]
            return Row(ids, [True] * len(ids), {})
        return encode_sample(self.maker.make(name), self.tokenizer)

    def _draw(self) -> list[Row]:
        rows = []
        for index in range(self.size):
            row = self._row(f"train-{self.seed}-{self.pool}-{index}")
            if len(row.ids) <= self.context:
                rows.append(row)
        return sorted(rows, key=lambda row: len(row.ids))

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches for ever; `pool` tells where a resumed run goes on."""
        while True:
            batches: list[Batch] = []
            current: list[Row] = []
            for row in self._draw():
                if current and (len(current) + 1) * len(row.ids) > self.budget:
                    batches.append(pad_batch(current))
                    current = []
                current.append(row)
            batches.append(pad_batch(current))
            random.Random(f"{self.seed}-{self.pool}").shuffle(batches)
            self.pool += 1
            yield from batches
