"""StepClock: times an engine's steps for the policy that chooses draft lengths."""

from __future__ import annotations

import time

from ngramspec._native.policy.auto import AutoPolicy


class StepClock:
    """Measure the time from a step's drafts to the next step's call: the pass and its overhead."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._started = self._stopped = 0.0

    def stop(self) -> None:
        """End a step: its tokens have arrived."""
        self._stopped = time.perf_counter()

    def start(self, num_tokens: int, steady: bool, policy: AutoPolicy | None) -> None:
        """Begin the next step, and let a policy learn from the last.

        Args:
            num_tokens: Tokens that the pass will verify, 0 = not known.
            steady: The last pass had the expected rows: no prompts, no pause.
            policy: The one that learns, None = nobody does.
        """
        if policy is not None and steady and self._num_tokens:
            policy.observe(self._num_tokens, self._stopped - self._started)
        self._num_tokens = num_tokens
        self._started = time.perf_counter()
