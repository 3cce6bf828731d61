"""A drafter of random trees, some of whose paths are what a model is known to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ngramspec.hosts.transformers import NgramSpeculator


class TreeDrafter:
    """Stands for a Drafter in generate(): row i of the batch says truths[i].

    Attributes:
        branched: Trees that were no chains.
        accepted: Drafted tokens that were accepted.
        side: Paths accepted that are not the first tokens of their trees.
    """

    policy = None
    max_draft = 64

    def __init__(self, truths: Sequence[Sequence[int]], vocab_size: int, seed: int) -> None:
        self._truths, self._vocab_size = truths, vocab_size
        self._rng = np.random.default_rng(seed)
        self._lengths = [0] * len(truths)
        self._trees: list[tuple[list[int], list[int]]] = [([], [])] * len(truths)
        self.branched = self.accepted = self.side = 0

    def begin(self, slot: int, prompt: Any) -> None:
        self._lengths[slot] = 0
        self._trees[slot] = ([], [])

    def end(self, slot: int) -> None:
        self._lengths[slot] = -1

    def shorten(self, slot: int, length: int) -> None:
        tokens, parents = self._trees[slot]
        self._trees[slot] = (tokens[:length], parents[:length])

    def accept(self, slot: int, token_ids: Any, num_accepted: int) -> None:
        tokens, parents = self._trees[slot]
        path: list[int] = []
        for token in token_ids[:num_accepted].tolist():
            after = [i for i, parent in enumerate(parents) if parent == (path or [-1])[-1]]
            (node,) = [i for i in after if tokens[i] == token]
            path.append(node)
        self.accepted += num_accepted
        self.side += path != list(range(len(path)))
        self._lengths[slot] += len(token_ids)
        self._trees[slot] = ([], [])

    def propose_batch(
        self,
        slots: Any,
        limits: Any,
        out: Any,
        lens: Any,
        above: Any,
        max_width: int,
        padded_rows: int = 0,
    ) -> None:
        for i, (slot, limit) in enumerate(zip(slots.tolist(), limits.tolist(), strict=True)):
            tokens, parents = self._grown(
                self._truths[slot][self._lengths[slot] :], limit, max_width
            )
            self._trees[slot] = (tokens, parents)
            self.branched += parents != list(range(-1, len(parents) - 1))
            lens[i] = len(tokens)
            out[i, : len(tokens)] = tokens
            above[i, : len(tokens)] = parents

    def _grown(
        self, truth: Sequence[int], limit: int, max_width: int
    ) -> tuple[list[int], list[int]]:
        """Return a tree of up to 9 tokens, mostly grown at the end of its true path."""
        rng = self._rng
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        right = [-1]
        for _ in range(rng.integers(0, min(limit, 9) + 1)):
            parent = right[-1] if rng.random() < 0.7 else int(rng.integers(-1, len(tokens)))
            depth = depths[parent] + 1 if parent >= 0 else 0
            if depths.count(depth) >= max_width:
                continue
            siblings = [tokens[i] for i, other in enumerate(parents) if other == parent]
            token = int(rng.integers(0, self._vocab_size))
            if parent == right[-1] and len(right) <= len(truth) and rng.random() < 0.5:
                token = truth[len(right) - 1]
            if token in siblings:
                continue
            if parent == right[-1] and len(right) <= len(truth) and token == truth[len(right) - 1]:
                right.append(len(tokens))
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
        return tokens, parents


class Trees(NgramSpeculator):
    """Lends a TreeDrafter."""

    def __init__(self, drafter: TreeDrafter) -> None:
        super().__init__("ngram-simple", policy="fixed")  # which takes no memory
        self._drafter = drafter

    @contextmanager
    def lend(self, slots: int) -> Iterator[Any]:
        yield self._drafter
