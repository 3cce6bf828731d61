"""Measure a file: drafts on documents that were not counted, with it and without."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.drafter.drafter import Drafter
from ngramspec._native.policy.auto import AutoPolicy
from ngramspec.costs import CostTable
from ngramspec.drafting import create_drafter
from ngramspec.drafting.names import DEFAULT_MAX_DRAFT
from ngramspec.files.pool_file import KIND as POOL_KIND
from ngramspec.files.suffix_file import KIND as INDEX_KIND
from ngramspec.lab.builder.options import BuildOptions

MOST_TOKENS = 1 << 21  # of held-out text to replay
PROMPT = 16  # tokens of a document that are taken as its prompt
Documents = Sequence[NDArray[np.int32]]


@dataclass(frozen=True)
class HeldOutDrafts:
    """Counts of a drafter on the held-out text.

    right: correctly drafted tokens of drafts at full length.
    modelled_speedup: over plain decoding, of drafts as long as pays, drafting taken as free.
    """

    steps: int = 0
    drafted: int = 0
    right: int = 0
    modelled_speedup: float = 1.0

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
    """Drafts on text that was not counted, each document as its own request.

    costs: name of the table that says what pays.
    """

    documents: int
    tokens: int
    costs: str
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
        options.costs.name,
        _measure(None, chosen, options),
        _measure(path, chosen, options),
    )


def measured_tokens(document: NDArray[np.int32]) -> int:
    """Return how many tokens of a document are replayed."""
    return max(0, len(document) - PROMPT)


def _measure(
    path: str | os.PathLike[str] | None, documents: Documents, options: BuildOptions
) -> HeldOutDrafts:
    policy = AutoPolicy(DEFAULT_MAX_DRAFT, options.costs)
    return HeldOutDrafts(
        *_replay(_drafter(options, path, None), documents),
        modelled_speedup=_speedup(_drafter(options, path, policy), documents, options.costs),
    )


def _drafter(
    options: BuildOptions, path: str | os.PathLike[str] | None, policy: AutoPolicy | None
) -> Drafter:
    params: dict[str, Any] = {"policy": policy}
    if options.kind == POOL_KIND:
        # What is learned from held-out text must not reach the file: a copy of the pool is used.
        params |= {"n_match": options.pool.n_match, "n_min": 0}
        if path is not None:
            params["pool"] = _private_pool(path)
        return create_drafter("ngram-mod", **params)
    if options.kind == INDEX_KIND:  # requests do not learn from one another
        return create_drafter("suffix", static=path, share=False, **params)
    return create_drafter("ngram-cache", static=path, **params)


def _private_pool(path: str | os.PathLike[str]) -> Any:
    from ngramspec._native.mod.pool import HashPool
    from ngramspec.files.container import open_container
    from ngramspec.files.pool_file import shape_of

    container = open_container(path, POOL_KIND)
    shape = shape_of(container)
    cells = np.frombuffer(container.view("cells"), "<u4").astype(np.uint32)
    counters = np.frombuffer(container.view("counters"), "<i8").astype(np.int64)
    return HashPool(
        shape.capacity, shape.check_bits, shape.max_occupancy, cells=cells, counters=counters
    )


def _replay(drafter: Drafter, documents: Documents) -> tuple[int, int, int]:
    """Return steps, drafted tokens and right ones, without a policy."""
    steps = drafted = right = 0
    for document in documents:
        outcome = drafter.replay(document[:PROMPT], document[PROMPT:])
        steps += outcome.steps
        drafted += outcome.drafted
        right += outcome.accepted
    return steps, drafted, right


def _speedup(drafter: Drafter, documents: Documents, costs: CostTable) -> float:
    """Return the modelled speed-up over plain decoding with the drafter's policy."""
    of_drafts = costs.dense(DEFAULT_MAX_DRAFT + 1)
    tokens, spent = 0, 0.0
    for document in documents:
        drafter.begin(0, document[:PROMPT])
        drafter.accept(0, document[PROMPT : PROMPT + 1], 0)
        at = PROMPT + 1
        while at < len(document):
            draft = drafter.propose(0, len(document) - at)
            wrong = np.flatnonzero(draft != document[at : at + len(draft)])
            right = int(wrong[0]) if len(wrong) else len(draft)
            drafter.accept(0, document[at : at + right + 1], right)
            spent += of_drafts[len(draft)]
            tokens += right + 1
            at += right + 1
    return tokens * costs.cost(1) / spent if spent else 1.0
