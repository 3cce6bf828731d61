"""Split: the requests of sets to choose drafters on, and later ones that are held out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Trace

PART = 3  # one in 3 requests is held out
LEAST = 8  # fewer held-out requests say nothing
BLOCK = 4  # requests in a row that a sample takes, so that it has whole conversations


@dataclass(frozen=True)
class Part:
    """One set. chosen_on, held_out: its first and its last requests, in order."""

    chosen_on: tuple[RecordedRequest, ...]
    held_out: tuple[RecordedRequest, ...]


@dataclass(frozen=True)
class Split:
    """All sets, and the order in which samples take blocks of requests.

    order: (set, first request, number of requests), every request of `chosen_on` once.
    """

    parts: tuple[Part, ...]
    order: tuple[tuple[int, int, int], ...]

    @property
    def num_chosen_on(self) -> int:
        """Requests to choose on."""
        return sum(len(part.chosen_on) for part in self.parts)

    @property
    def num_held_out(self) -> int:
        """Requests that are held out, 0 if there were too few."""
        return sum(len(part.held_out) for part in self.parts)

    @property
    def judged_on(self) -> list[tuple[RecordedRequest, ...]]:
        """By set, what is held out; the requests to choose on only where no set holds any out."""
        held_out = bool(self.num_held_out)
        return [part.held_out if held_out else part.chosen_on for part in self.parts]

    def sample(self, count: int) -> list[list[RecordedRequest]]:
        """Return `count` requests to choose on, by set, in order; a larger sample has them too.

        Sets without a sampled request are left out.
        """
        taken: dict[int, list[int]] = {}
        for number, first, length in self.order:
            taken.setdefault(number, []).extend(range(first, first + min(length, count)))
            count -= min(length, count)
            if not count:
                break
        return [[self.parts[n].chosen_on[i] for i in sorted(taken[n])] for n in sorted(taken)]


def split(traces: Sequence[Trace], seed: int = 0) -> Split:
    """Hold out the last third of each set, the part that came later.

    Args:
        traces: Sets with requests in the order in which they came.
        seed: For the order in which samples take blocks; each set has its share in every sample.

    Returns:
        Split: Nothing is held out if that would be less than LEAST requests.
    """
    lasts = [len(trace.requests) // PART for trace in traces]
    lasts = lasts if sum(lasts) >= LEAST else [0] * len(lasts)
    parts = tuple(
        Part(trace.requests[: len(trace.requests) - last], trace.requests[-last:] if last else ())
        for trace, last in zip(traces, lasts, strict=True)
    )
    return Split(parts, _order(parts, random.Random(seed)))


def _order(parts: Sequence[Part], chance: random.Random) -> tuple[tuple[int, int, int], ...]:
    """Return blocks in random order within a set, sets interleaved by their lengths."""
    placed: list[tuple[float, int, int, int]] = []
    for number, part in enumerate(parts):
        total = len(part.chosen_on)
        firsts = list(range(0, total, BLOCK))
        chance.shuffle(firsts)
        for place, first in enumerate(firsts):
            length = min(BLOCK, total - first)
            placed.append(((place + 0.5) / len(firsts), number, first, length))
    return tuple((number, first, length) for _, number, first, length in sorted(placed))
