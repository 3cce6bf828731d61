"""Batches: tokenised samples of similar length, padded, with the loss on the answers only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import torch
from tasks import Sample, TaskMaker
from tokenizers import Tokenizer
from torch import Tensor

from copies import Found, Piece, Places, find_places

IGNORED = -100
END = 2


@dataclass(frozen=True)
class Row:
    """A text's token ids.

    judged: True on the tokens that bear a loss.
    places: Where to look for the tokens of answers.
    """

    ids: list[int]
    judged: list[bool]
    places: Found = field(default_factory=Found)


@dataclass(frozen=True)
class Looks:
    """Where some positions of each row are to look.

    positions: The positions, [rows, positions]; those past a row's own have no places.
    places: Places for each, [rows, positions, places]; -1 where there are fewer.
    """

    positions: Tensor
    places: Tensor

    def some(self, every: int, first: int) -> Looks:
        """Return one position of every few."""
        positions, places = self.positions[:, first::every], self.places[:, first::every]
        return Looks(positions.contiguous(), places.contiguous())


@dataclass(frozen=True)
class Batch:
    """Token ids and next-token targets, both [rows, length]; `IGNORED` targets bear no loss.

    looks: Of each kind that `Found` has.
    """

    tokens: Tensor
    targets: Tensor
    looks: dict[str, Looks]


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
    judged = [piece.answer for piece in pieces for _ in piece.ids]
    return Row(ids, judged, find_places(pieces))


def pad_batch(rows: list[Row], multiple: int = 32) -> Batch:
    """Pad rows on the right to a common length and shift the targets by one."""
    length = max(len(row.ids) for row in rows) - 1
    length = -(-length // multiple) * multiple
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for index, row in enumerate(rows):
        ids = torch.tensor(row.ids)
        tokens[index, : len(ids) - 1] = ids[:-1]
        labels = torch.where(torch.tensor(row.judged), ids, IGNORED)
        targets[index, : len(ids) - 1] = labels[1:]
    kinds = [one.name for one in fields(Found)]
    looks = {kind: _looks([getattr(row.places, kind) for row in rows]) for kind in kinds}
    return Batch(tokens, targets, looks)


def _looks(rows: list[Places]) -> Looks:
    """Pad positions and places of all rows to common lengths."""
    several = max((len(places) for row in rows for places in row.values()), default=0)
    positions = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    places = torch.full((*positions.shape, several), -1)
    for n, row in enumerate(rows):
        items = sorted(row.items())
        positions[n, : len(items)] = torch.tensor([at for at, _ in items], dtype=torch.long)
        filled = [[*seen, *[-1] * (several - len(seen))] for _, seen in items]
        places[n, : len(items)] = torch.tensor(filled, dtype=torch.long).view(len(items), several)
    return Looks(positions, places)


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
            return Row(ids, [True] * len(ids))
        if rng.random() < self.plain / 5:
            functions = rng.sample(self.maker.corpus.functions, 4)
            text = "\n\n\n".join(function.source for function in functions)
            ids = self.tokenizer.encode(text).ids[: self.context // 2]
            return Row(ids, [True] * len(ids))
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
