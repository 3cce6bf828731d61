"""EngineStats: what the engine counts; Histogram: values in fixed buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

SECONDS = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0,
    2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Histogram:
    """Counts of values by bucket, their number and sum.

    Args:
        bounds: Upper bounds of the buckets, inclusive, ascending; one more bucket takes the rest.
    """

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value. Cost: O(log buckets)."""
        self.buckets[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Return how many values were counted."""
        return sum(self.buckets)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound, values up to it) for every bucket, the last one "+Inf"."""
        made, running = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.buckets, strict=True):
            running += count
            made.append(("+Inf" if bound == float("inf") else repr(float(bound)), running))
        return made


@dataclass
class EngineStats:
    """Counters since the engine was made. Its thread writes them, anyone may read."""

    num_requests: int = 0  # submitted
    finished: dict[str, int] = field(default_factory=dict)  # by finish reason
    num_prompt_tokens: int = 0  # read, those in the cache not counted
    num_cached_tokens: int = 0
    num_emitted_tokens: int = 0
    num_steps: int = 0  # decodes
    num_batch_tokens: int = 0  # tokens in all decodes
    num_busy_slots: int = 0  # slots in all decodes
    num_slot_steps: int = 0  # of these the ones that emitted
    num_drafts: int = 0  # verified
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    num_rollback_failures: int = 0  # sequences read again because tokens could not be taken back
    num_preempted: int = 0  # requests that failed because the cache was full
    prompt_seconds: float = 0.0  # decodes that held prompt tokens
    decode_seconds: float = 0.0  # other decodes
    draft_seconds: float = 0.0  # proposing
    verify_seconds: float = 0.0  # choosing tokens
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    request_latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue_time: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    batch_tokens: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    draft_lengths: Histogram = field(default_factory=lambda: Histogram(COUNTS))

    def count_draft(self, drafted: int, accepted: int) -> None:
        """Count one verified draft."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.draft_lengths.observe(drafted)
        positions = self.accepted_per_position
        if len(positions) < accepted:
            positions.extend([0] * (accepted - len(positions)))
        for position in range(accepted):
            positions[position] += 1
