"""Measure a file: drafts on documents that were not counted, with it and without."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.drafter.drafter import Drafter
from ngramspec.build.options import BuildOptions
from ngramspec.drafters import create_drafter
from ngramspec.formats.pool_file import KIND as POOL_KIND
from ngramspec.formats.suffix_file import KIND as INDEX_KIND

MOST_TOKENS = 1 << 21  # of held-out text to replay
PROMPT = 16  # tokens of a document that are taken as its prompt
Documents = Sequence[NDArray[np.int32]]


@dataclass(frozen=True)
class HeldOutDrafts:
    """Counts of a drafter on the held-out text. right: correctly drafted tokens."""

    steps: int = 0
    drafted: int = 0
    right: int = 0

    @property
    def mean_accepted_length(self) -> float:
        """Return tokens per target pass; 1 is plain decoding."""
        return 1.0 + self.right / self.steps if self.steps else 1.0

    @property
    def acceptance(self) -> float:
        """Return the share of drafted tokens that were right."""
        return self.right / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class HeldOut:
    """Drafts on text that was not counted, each document as its own request."""

    documents: int
    tokens: int
    without_file: HeldOutDrafts
    with_file: HeldOutDrafts


def measure(path: str | os.PathLike[str], documents: Documents, options: BuildOptions) -> HeldOut:
    """Replay documents as if a target had written them, with a new file and without it."""
    chosen, tokens = [], 0
    for document in documents:
        if measured_tokens(document) and tokens < MOST_TOKENS:
            chosen.append(document)
            tokens += measured_tokens(document)
    return HeldOut(
        len(chosen),
        tokens,
        _replay(_drafter(options, None), chosen),
        _replay(_drafter(options, path), chosen),
    )


def measured_tokens(document: NDArray[np.int32]) -> int:
    """Return how many tokens of a document are replayed."""
    return max(0, len(document) - PROMPT)


def _drafter(options: BuildOptions, path: str | os.PathLike[str] | None) -> Drafter:
    params: dict[str, Any] = {}
    if options.kind == POOL_KIND:
        # What is learned from held-out text must not reach the file: a copy of the pool is used.
        params = {"n_match": options.pool.n_match, "n_min": 0}
        if path is not None:
            params["pool"] = _private_pool(path)
        return create_drafter("ngram-mod", **params)
    if options.kind == INDEX_KIND:  # requests do not learn from one another
        return create_drafter("suffix", static=path, share=False)
    return create_drafter("ngram-cache", static=path)


def _private_pool(path: str | os.PathLike[str]) -> Any:
    from ngramspec._native.mod.pool import HashPool
    from ngramspec.formats.container import open_container
    from ngramspec.formats.pool_file import shape_of

    container = open_container(path, POOL_KIND)
    shape = shape_of(container)
    cells = np.frombuffer(container.view("cells"), "<u4").astype(np.uint32)
    counters = np.frombuffer(container.view("counters"), "<i8").astype(np.int64)
    return HashPool(
        shape.capacity, shape.check_bits, shape.max_occupancy, cells=cells, counters=counters
    )


def _replay(drafter: Drafter, documents: Documents) -> HeldOutDrafts:
    steps = drafted = right = 0
    for document in documents:
        outcome = drafter.replay(document[:PROMPT], document[PROMPT:])
        steps += outcome.steps
        drafted += outcome.drafted
        right += outcome.accepted
    return HeldOutDrafts(steps, drafted, right)
