"""Exactness: in which settings a token's logits have the same bits in any batch.

The same text is decoded token by token, which is the reference, and in batches of other sizes:
alone, beside other sequences, and with wrong drafts decoded and taken back on the way. Every bit of
every row must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.engine.target import Target
from ngramspec.errors import BackendError

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 50, 62, 63, 64)
BESIDE = 3  # other sequences with a token each in the batch
LIFETIME = 24  # tokens of another sequence until it starts over
NUM_ROWS = 64  # compared rows
WAYS = ("alone", "beside others", "after rollbacks")
Logits = npt.NDArray[np.float32]
OpenTarget = Callable[["Setting", int], AbstractContextManager[Target]]


@dataclass(frozen=True)
class Setting:
    """How a target is run, as far as it may change the rounding.

    padded: A single token is decoded together with another one, which is thrown away.
    """

    threads: int = 1
    flash_attn: bool = True
    cache_type: str = "f16"
    unified: bool = True
    padded: bool = False

    def text(self) -> str:
        parts = [
            f"{self.threads} thread{'s' if self.threads > 1 else ''}",
            f"flash attention {'on' if self.flash_attn else 'off'}",
            f"{self.cache_type} cache",
            "one cache for all slots" if self.unified else "a cache per slot",
        ]
        return ", ".join([*parts, "single tokens padded"] if self.padded else parts)


def combinations(
    threads: Iterable[int], flash_attn: Iterable[bool], cache_types: Iterable[str]
) -> list[Setting]:
    """Return all settings with these values that llama.cpp has; padded ones if that may help."""
    settings = []
    for kind, on, count, unified in product(cache_types, flash_attn, threads, (True, False)):
        if on or kind in ("f16", "f32"):  # there is no quantised cache without flash attention
            settings.append(Setting(count, on, kind, unified))
            if count > 1 and unified:
                settings.append(Setting(count, on, kind, unified, padded=True))
    return settings


@dataclass
class Exactness:
    """What was found for one setting: rows that differ, by way of decoding and batch size."""

    setting: Setting
    differing: dict[str, dict[int, int]] = field(default_factory=dict)
    num_rows: int = NUM_ROWS

    def limit(self, *ways: str) -> int:
        """Return the largest batch up to which no row differed, 0 when single tokens did.

        ways: Ways of decoding to look at, all by default.
        """
        differing = [self.differing[way] for way in ways or tuple(self.differing)]
        largest = 0
        for size in sorted(set().union(*differing)):
            if any(counts.get(size, 0) for counts in differing):
                return largest
            largest = size
        return largest

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.setting),
            "exact_batch": self.limit(),
            "rows": self.num_rows,
            "differing": self.differing,
        }


def measure(
    open_target: OpenTarget,
    setting: Setting,
    token_ids: npt.NDArray[np.int32],
    sizes: Sequence[int] = SIZES,
    *,
    num_rows: int = NUM_ROWS,
    ways: Sequence[str] = WAYS,
    stop_early: bool = False,
    on_step: Callable[[], None] = lambda: None,
    before_pass: Callable[[], None] = lambda: None,
) -> Exactness:
    """Measure one setting.

    Args:
        open_target: Makes the target of a setting with n sequences; a context manager.
        setting: The setting.
        token_ids: The text, int32; its end is compared, the others come before.
        sizes: Batch sizes to try, ascending.
        num_rows: Compared tokens; a larger batch is compared over its own size.
        ways: Ways of decoding to try, of WAYS; the last one is beside others, too.
        stop_early: Leave out the sizes after the first one that differs.
        on_step: Called after each compared size.
        before_pass: Called before each pass; what it raises ends the measurement.

    Raises:
        BackendError: The target cannot be made, fails, or cannot take back any number of tokens.

    Cost: len(token_ids) decoded tokens, those that are compared one by one, then about
        num_rows * sum(1 / size) batches per way.
    """
    exactness = Exactness(setting, num_rows=num_rows)
    with open_target(setting, BESIDE + 1) as target:
        if target.max_rollback is not None:
            raise BackendError("no setting is exact: this model cannot take its tokens back")
        longest = max([num_rows, *(size for size in sizes if size <= target.max_batch)])
        runner = _Runner(target, token_ids, num_rows, before_pass, longest)
        reference = runner.plain()
        for way in ways:
            counts = exactness.differing[way] = {}
            for size in (1, *sizes):
                if size <= target.max_batch:
                    rows = runner.decode(way, size)
                    differing = rows.view(np.int32) != reference[-len(rows) :]
                    counts[size] = int(differing.any(axis=1).sum())
                on_step()
                if stop_early and counts.get(size):
                    break
    return exactness


def trees_differ(
    target: Target,
    token_ids: npt.NDArray[np.int32],
    sizes: Sequence[int],
    num_rows: int = NUM_ROWS,
    before_pass: Callable[[], None] = lambda: None,
) -> bool:
    """Return whether any row's bits depend on the branches beside it.

    The text's end is decoded in trees of two branches, where it is the first one and the second one
    by turns. A second one that was right is decoded again, as an exact engine does it.

    Args:
        target: With 2 branches or more; sequence 0 is empty afterwards.
        token_ids: The text, int32; its last num_rows tokens are compared.
        sizes: Batch sizes to try, >= 3.
        num_rows: Compared tokens.
        before_pass: As for measure.

    Raises:
        BackendError: The target fails.
    """
    runner = _Runner(target, token_ids, num_rows, before_pass)
    reference = runner.plain()
    try:
        return any((runner.decode_trees(size).view(np.int32) != reference).any() for size in sizes)
    finally:
        target.truncate(0, 0)


class _Runner:
    """Decodes the end of a text in several ways on sequence 0 of a target."""

    def __init__(
        self,
        target: Target,
        token_ids: npt.NDArray[np.int32],
        num_rows: int,
        before_pass: Callable[[], None],
        longest: int = 0,
    ) -> None:
        self._target = target
        self._before_pass = before_pass
        self._ids = token_ids
        self._num_rows = num_rows
        self._start = int(token_ids.size) - max(num_rows, longest)
        self._batch = Batch(target.max_batch)
        self._rows = Rows(target.vocab_size)
        self._beside = 0  # tokens that the other sequences hold

    def plain(self) -> npt.NDArray[np.int32]:
        """Decode the text, its end token by token; return the bits of the compared rows.

        What all ways have before it may be decoded in large batches, which take less time.
        """
        for sequence in range(min(BESIDE + 1, self._target.num_sequences)):
            self._target.truncate(sequence, 0)
        most = self._target.max_batch
        for position in range(0, self._start, most):
            self._decode(position, min(most, self._start - position), output=False)
        return self._all(1, self._start, beside=False, rollback=False).view(np.int32)

    def decode(self, way: str, size: int) -> Logits:
        start = self._ids.size - max(self._num_rows, size)
        return self._all(size, start, beside=way != WAYS[0], rollback=way == WAYS[2])

    def decode_trees(self, size: int) -> Logits:
        rows: list[Logits] = []
        self._target.truncate(0, self._start)
        position, right = self._start, 0
        while position < self._ids.size:
            count = min((size + 1) // 2, self._ids.size - position)
            rows.extend(self._tree(position, count, right))
            if right:
                self._target.truncate(0, position + 1)
                if count > 1:
                    self._decode(position + 1, count - 1, output=False)
            else:
                self._target.truncate(0, position + count)
            position, right = position + count, 1 - right
        return np.array(rows)

    def _tree(self, position: int, count: int, right: int) -> list[Any]:
        """Decode a token with a tree after it whose branch `right` is the text; return its rows."""
        tokens, length = self._ids[position : position + count], count - 1
        wrong = (tokens[1:] + 1) % self._target.vocab_size
        draft = np.concatenate([wrong, tokens[1:]] if right else [tokens[1:], wrong])
        parents = np.arange(-1, 2 * length - 1, dtype=np.int32)
        parents[length : length + 1] = -1
        self._batch.clear()
        self._batch.add(0, position, tokens[:1], draft.astype(np.int32), True, parents)
        self._pass()
        first = 1 + right * length
        return [self._rows.copy(row) for row in (0, *range(first, first + length))]

    def _all(self, size: int, position: int, beside: bool, rollback: bool) -> Logits:
        rows: list[Logits] = []
        self._target.truncate(0, position)
        while position < self._ids.size:
            count = min(
                size - (BESIDE if beside and size > BESIDE else 0), self._ids.size - position
            )
            if rollback:
                self._wrong(position, count)
            rows.extend(self._decode(position, count, beside=beside and size > BESIDE))
            position += count
        return np.array(rows)

    def _wrong(self, position: int, count: int) -> None:
        """Decode a wrong draft of this length and take it back."""
        wrong = (self._ids[position : position + count] + 1) % self._target.vocab_size
        self._batch.clear()
        self._batch.add(0, position, wrong.astype(np.int32), None, False)
        self._pass()
        self._target.truncate(0, position)

    def _decode(
        self, position: int, count: int, *, output: bool = True, beside: bool = False
    ) -> list[Any]:
        tokens = self._ids[position : position + count]
        self._batch.clear()
        first = tokens if not output else tokens[:1]
        draft = tokens[1:] if output and count > 1 else None
        self._batch.add(0, position, first, draft, output)
        if beside:
            self._add_others()
        self._pass()
        return [self._rows.copy(row) for row in range(count)] if output else []

    def _pass(self) -> None:
        self._before_pass()
        self._target.decode(self._batch, self._rows)

    def _add_others(self) -> None:
        """Add a token of each other sequence; they restart at times, so that cells are reused."""
        if self._beside >= LIFETIME:
            for sequence in range(1, BESIDE + 1):
                self._target.truncate(sequence, 0)
            self._beside = 0
        for sequence in range(1, BESIDE + 1):
            token = self._ids[(self._beside * 7 + sequence) % self._ids.size]
            self._batch.add(sequence, self._beside, np.array([token], np.int32), None, True)
        self._beside += 1
