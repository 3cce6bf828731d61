"""Run different drafters in turns, and compare their tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Mode = TypeVar("Mode")
Run = TypeVar("Run")
NOISY = 1.25  # times the slowest of equal runs, at which they say nothing


def run_in_turns(
    modes: Sequence[Mode],
    rounds: int,
    run: Callable[[Mode], Run],
    advance: Callable[[], object] = lambda: None,
    first: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> list[dict[Mode, Run]]:
    """Run every mode once per round, so that drift of the machine affects all of them.

    Each round begins with another mode, so that none is always first.

    Args:
        modes: What to compare.
        rounds: Runs of each.
        run: Does one run.
        advance: Called after each.
        first: Which mode begins the first round; counted on after the last one.
        stopped: Asked before each run whether to end; the round is then left out.

    Returns:
        The runs of each whole round by mode, in the order of `modes`.
    """
    runs: list[dict[Mode, Run]] = []
    for number in range(first, first + rounds):
        start = number % len(modes)
        by_mode = {}
        for mode in (*modes[start:], *modes[:start]):
            if stopped():
                return runs
            by_mode[mode] = run(mode)
            advance()
        runs.append({mode: by_mode[mode] for mode in modes})
    return runs


def spread(rates: Sequence[float]) -> float:
    """Return how many times as fast as the slowest of equal runs the fastest was."""
    return max(rates) / min(rates) if min(rates) else math.inf


def first_difference(expected: Iterable[int], got: Iterable[int]) -> int | None:
    """Return the index of the first token that differs or that only one has; None if equal."""
    expected, got = list(expected), list(got)
    if expected == got:
        return None
    pairs = zip(expected, got, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
