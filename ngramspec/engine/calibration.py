"""Calibration: the time of a target's pass over n tokens, a token and a draft of n - 1."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows
from ngramspec.costs import CostTable
from ngramspec.engine.target import Target
from ngramspec.errors import BackendError, InputError

# Kernels change with the size, at 8, 16, 32 and 64 more often than elsewhere.
SIZES = (
    *range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 60, 63, 64, 65, 72, 80, 96, 128,
    160, 192, 256, 384, 512, 768, 1024,
)  # fmt: skip
SETTLING = 0.05  # seconds of decodes of a size before a timed one
MOST_SETTLING = 3
LONG = 0.15  # seconds of a decode for which it does not matter what was prepared
# For `calibrate_within`, those that tell most first. Without the first two nothing is known.
QUICK_SIZES = (1, 8, 2, 4, 16, 32, 64, 3, 6, 12, 24, 48, 63, 65, 96, 128, 192, 256)
QUICK_ROUNDS = 50  # at most, on a machine so busy that samples disagree
AGREE = 1.25  # a size is known once its two fastest samples are within this factor
QUICK_CONTEXT = 128  # tokens in the cache, if decoding them takes at most FILL_SHARE of the time
FILL_SHARE = 0.25


@dataclass(frozen=True)
class Calibration:
    """Times of decodes by tokens in the batch.

    seconds: the samples of each measured size, sizes rising.
    context: tokens that were in the cache.
    complete: whether all sizes and rounds were measured.
    scattered: share of the decodes that took much longer than the fastest one of their size.
    """

    seconds: Mapping[int, Sequence[float]]
    context: int
    complete: bool
    scattered: float = 0.0

    def medians(self) -> dict[int, float]:
        """Return the median of each size. It may fall where a size has a faster kernel."""
        return {n: round(statistics.median(times), 9) for n, times in self.seconds.items()}

    def table(self, name: str) -> CostTable:
        """Return the medians, in seconds.

        Raises:
            InputError: Nothing was measured.
        """
        return CostTable(tuple(self.medians().items()), name)

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures of each size as plain data, in seconds; relative: to one token."""
        medians = self.medians()
        alone = medians.get(1)
        return [
            {
                "tokens": size,
                "seconds": seconds,
                "relative": None if alone is None else seconds / alone,
                "seconds_per_token": seconds / size,
                "fastest_seconds": min(self.seconds[size]),
                "slowest_seconds": max(self.seconds[size]),
                "samples": len(self.seconds[size]),
            }
            for size, seconds in medians.items()
        ]


def sizes_up_to(most: int) -> tuple[int, ...]:
    """Return the batch sizes to measure, up to and including `most`.

    Raises:
        InputError: most < 1.
    """
    if most < 1:
        raise InputError(f"the largest batch must have 1 token or more, got {most}")
    return (*(size for size in SIZES if size < most), most)


def calibrate(
    target: Target,
    token_ids: npt.NDArray[np.int32],
    sizes: Sequence[int],
    rounds: int,
    *,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Calibration:
    """Measure the decodes of one sequence of a target.

    As in verification, every token of a batch gets its row of logits, and the tokens are rolled
    back afterwards, so each decode sees the same context. Every round measures all sizes in a new
    random order, so that drift of the machine affects all of them.

    Args:
        target: Its first sequence is emptied and used.
        token_ids: int32, at least the largest size in length; the last ones are decoded
            repeatedly, the others are the context.
        sizes: Tokens in a batch, rising, from 1 on.
        rounds: Samples of each size, >= 1.
        seed: For the random orders.
        advance: Called len(sizes) * (rounds + 1) times: after each sample and warm-up.
        stopped: Returns True to end early; called before each of these.

    Raises:
        InputError: There are too few tokens, or a size is larger than the target's batches.
        BackendError, CapacityError: The target fails.

    Cost: 1 to 4 decodes per sample, more than one only if one takes less than SETTLING.
    """
    _check(target, token_ids, sizes, rounds)
    probe = _Probe(target, token_ids)
    probe.fill(int(token_ids.size) - sizes[-1])
    samples: dict[int, list[float]] = {size: [] for size in sizes}
    for size, timed in _visits(sizes, rounds, seed):
        if stopped():
            measured = {size: times for size, times in samples.items() if times}
            return Calibration(measured, probe.context, False)
        if timed:
            samples[size].append(probe.measured(size))
        else:
            probe.seconds(size)
        advance()
    return Calibration(samples, probe.context, True)


def calibrate_within(
    target: Target, seconds: float, sizes: Sequence[int] = QUICK_SIZES
) -> Calibration | None:
    """Measure the decodes of one sequence of a target roughly, in a given time.

    The fastest sample of each size counts, once another one confirms it: other programs only make
    passes slower. Of long ones one sample is enough if there is no time for more. Sizes that would
    take too long are left out, so a slow target starts in time.

    Args:
        target: Its first sequence is emptied and used, and is empty afterwards.
        seconds: About how long it may take, the very first decode not counted: it may read the
            model's file.
        sizes: Tokens in a batch, those that tell most first: 1 and 8, then any others.

    Returns:
        Calibration: One sample of each size; None if nothing is sure about decodes of 1 and 8
        tokens: batches are too small, time is too short, or the machine is too busy.

    Raises:
        BackendError, CapacityError: The target fails.
    """
    most = min(target.max_batch, target.exact_batch or target.max_batch, target.context_size - 1)
    sizes = [size for size in sizes if size <= most]
    if sizes[:2] != list(QUICK_SIZES[:2]):
        return None
    chance = np.random.default_rng(0)
    count = min(max(sizes) + QUICK_CONTEXT, target.context_size)
    probe = _Probe(target, chance.integers(0, target.vocab_size, count, dtype=np.int32))
    probe.seconds(1)
    samples = _Samples(probe, time.perf_counter() + seconds)
    for size in sizes[:2]:
        samples.take(size)
    per_token = samples.expected(1)
    affordable = FILL_SHARE * seconds / per_token if per_token else 0.0
    context = min(count - max(sizes), QUICK_CONTEXT, int(affordable))
    probe.fill(context)
    samples.start_over()
    for _ in range(QUICK_ROUNDS):
        unsure = [size for size in sizes if not samples.agree(size)]
        taken = [samples.take(size) for size in unsure]
        if not any(taken):
            break
    probe.fill(0)
    fastest = {size: (samples.fastest(size),) for size in sorted(sizes) if samples.measured(size)}
    if not fastest.keys() >= set(QUICK_SIZES[:2]):
        return None
    return Calibration(fastest, context, len(fastest) == len(sizes), samples.scattered())


def _visits(sizes: Sequence[int], rounds: int, seed: int) -> Iterator[tuple[int, bool]]:
    """Yield sizes, and whether their time counts: the first round is for warm-up."""
    chance = random.Random(seed)
    yield from ((size, False) for size in sizes)
    for _ in range(rounds):
        yield from ((size, True) for size in chance.sample(sizes, len(sizes)))


class _Probe:
    """Decodes batches after a context, and rolls them back. token_ids: the context, and more."""

    def __init__(self, target: Target, token_ids: npt.NDArray[np.int32]) -> None:
        self.context = 0
        self._target = target
        self._ids = token_ids
        self._batch = Batch(target.max_batch)
        self._rows = Rows(target.vocab_size)
        self._state: Any = None
        self._latest: dict[int, float] = {}  # seconds by size
        self.fill(0)

    def fill(self, context: int) -> None:
        self.context = context
        self._fill()

    def measured(self, size: int) -> float:
        """Return the time of a decode after untimed ones of the same size.

        In plain decoding, a pass reuses what the pass before prepared: llama.cpp's graph, the CPU's
        caches. For long decodes this does not matter.
        """
        for _ in range(min(MOST_SETTLING, int(SETTLING / self._latest[size]))):
            self.seconds(size)
        return self.seconds(size)

    def seconds(self, size: int) -> float:
        tokens = self._ids[self.context : self.context + size]
        self._batch.clear()
        self._batch.add(0, self.context, tokens[:1], tokens[1:] if size > 1 else None, True)
        started = time.perf_counter()
        self._target.decode(self._batch, self._rows)
        seconds = time.perf_counter() - started
        self._take_back()
        self._latest[size] = max(seconds, 1e-9)
        return self._latest[size]

    def _take_back(self) -> None:
        """Remove the tokens of the batch; if nothing else works, decode the context again."""
        if self._target.truncate(0, self.context):
            return
        if self._state is None or not self._target.restore(0, self._state, self.context):
            self._fill()

    def _fill(self) -> None:
        if not self._target.truncate(0, 0):
            raise BackendError("the target cannot empty a sequence")
        for at in range(0, self.context, self._target.max_batch):
            tokens = self._ids[at : min(at + self._target.max_batch, self.context)]
            self._batch.clear()
            self._batch.add(0, at, tokens, None, False)
            self._target.decode(self._batch, self._rows)
        self._state = self._target.save(0) if self.context and self._target.can_save else None


class _Samples:
    """Times of decodes by size, taken as long as there is time."""

    def __init__(self, probe: _Probe, deadline: float) -> None:
        self._probe, self._deadline = probe, deadline
        self._taken: dict[int, list[float]] = {}  # rising
        self._per_token = 0.0  # seconds of the fastest decode so far

    def expected(self, tokens: int) -> float:
        """Return how long a decode takes at most: a token costs least in the largest batches."""
        return tokens * self._per_token

    def take(self, size: int) -> bool:
        """Time a decode of a size if there is time for it; return whether there was.

        Where it may be short, there are two, of which the first one prepares the second.
        """
        count = 1 if self.expected(size) > LONG else 2
        if time.perf_counter() + count * self.expected(size) > self._deadline:
            return False
        times = sorted(self._probe.seconds(size) for _ in range(count))
        self._taken[size] = sorted(self._taken.get(size, []) + times)
        per_token = times[0] / size
        self._per_token = min(self._per_token or per_token, per_token)
        return True

    def start_over(self) -> None:
        """Forget the samples, but not how fast the target is."""
        self._taken.clear()

    def agree(self, size: int) -> bool:
        """Return whether the two fastest samples of a size are nearly equal."""
        taken = self._taken.get(size, [])
        return len(taken) > 1 and taken[1] <= AGREE * taken[0]

    def measured(self, size: int) -> bool:
        """Return whether a size was measured: its samples agree, or it is long and has but one."""
        taken = self._taken.get(size, [])
        return self.agree(size) or (len(taken) == 1 and taken[0] > LONG)

    def fastest(self, size: int) -> float:
        return self._taken[size][0]

    def scattered(self) -> float:
        """Return the share of the samples that do not agree with the fastest one of their size."""
        off = [seconds > AGREE * taken[0] for taken in self._taken.values() for seconds in taken]
        return sum(off) / max(len(off), 1)


def _check(
    target: Target, token_ids: npt.NDArray[np.int32], sizes: Sequence[int], rounds: int
) -> None:
    if rounds < 1:
        raise InputError(f"rounds must be >= 1, got {rounds}")
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
        raise InputError(f"sizes must rise from 1 or more, got {list(sizes)}")
    if sizes[-1] > target.max_batch:
        raise InputError(
            f"a batch of {sizes[-1]} tokens is more than the target's {target.max_batch}"
        )
    if not sizes[-1] <= token_ids.size <= target.context_size:
        raise InputError(
            f"need {sizes[-1]} tokens or more and at most the context of {target.context_size}, "
            f"got {token_ids.size}"
        )
