"""RoundClock: times a host's rounds for the policy that chooses draft lengths."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ngramspec._native.policy.auto import AutoPolicy

if TYPE_CHECKING:
    from ngramspec.adapters.llama_cpp.streams import Stream


class RoundClock:
    """Measures the time from one call of the host to the next: decode, sampling and overhead.

    Args:
        policy: Learns the times; None = they are not used.
    """

    def __init__(self, policy: AutoPolicy | None) -> None:
        self._policy = policy
        self._stream: Stream | None = None
        self._num_tokens = 0
        self._started = self._stopped = 0.0

    def start(self, stream: Stream, length: int, drafted: int) -> None:
        """Begin a round: the host has a text of `length` tokens and decodes the draft."""
        self._stream, self._length, self._num_tokens = stream, length, 1 + drafted
        self._started = time.perf_counter()

    def stop(self) -> None:
        """End the round: the host calls again."""
        self._stopped = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave out time of the round that was spent outside the host."""
        self._started += seconds

    def learn(self, stream: Stream, length: int) -> None:
        """Let the policy learn the round, if this call continues the last one."""
        if self._policy is not None and self._stream is stream:
            emitted = length - self._length
            if 0 < emitted <= self._num_tokens:
                self._policy.observe(self._num_tokens, self._stopped - self._started)
        self._stream = None
