"""Batches: tokenised samples of similar length, padded, with the loss on the answers only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import torch
from copies import Found, Piece, Places, find_places
from tasks import Sample, TaskMaker
from tokenizers import Tokenizer
from torch import Tensor

IGNORED = -100
END = 2


@dataclass(frozen=True)
class Row:
    """A text's token ids.

    wanted: True on the tokens that bear a loss.
    places: Where to look for the tokens of answers.
    """

    ids: list[int]
    wanted: list[bool]
    places: Found = field(default_factory=Found)


@dataclass(frozen=True)
class Looks:
    """Where some positions of a row are to look.

    positions: The positions, [positions].
    which, places: Index of a position and one place to look at, both [places].
    """

    positions: Tensor
    which: Tensor
    places: Tensor


@dataclass(frozen=True)
class Batch:
    """Token ids and next-token targets, both [rows, length]; `IGNORED` targets bear no loss.

    looks: Of each kind that `Found` has, each row's.
    """

    tokens: Tensor
    targets: Tensor
    looks: dict[str, list[Looks]]


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
    return Row(ids, wanted, find_places(pieces))


def pad_batch(rows: list[Row], multiple: int = 32) -> Batch:
    """Pad rows on the right to a common length and shift the targets by one."""
    length = max(len(row.ids) for row in rows) - 1
    length = -(-length // multiple) * multiple
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    targets = torch.full((len(rows), length), IGNORED)
    for index, row in enumerate(rows):
        ids = torch.tensor(row.ids)
        tokens[index, : len(ids) - 1] = ids[:-1]
        labels = torch.where(torch.tensor(row.wanted), ids, IGNORED)
        targets[index, : len(ids) - 1] = labels[1:]
    kinds = [one.name for one in fields(Found)]
    looks = {kind: [_looks(getattr(row.places, kind)) for row in rows] for kind in kinds}
    return Batch(tokens, targets, looks)


def _looks(places: Places) -> Looks:
    found = sorted(places.items())
    flat = [(which, at) for which, (_, several) in enumerate(found) for at in several]
    pairs = torch.tensor(flat, dtype=torch.long).view(-1, 2)
    positions = torch.tensor([position for position, _ in found], dtype=torch.long)
    return Looks(positions, pairs[:, 0], pairs[:, 1])


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
